-- The hand-out did not happen: out becomes held again, and the start is uncounted.

local not_after, job, gen = num(), arg(), num()
if now > not_after then return late() end
local r = row(job)
if not r or r.gen ~= gen or r.place ~= 'o' then return { now, 0 } end
for _, undo in ipairs(taken_of(r)) do
  local k = key(undo[1])
  undo_take(k, undo)
  k.changed = true
  freed[#freed + 1] = undo[1]
end
r.taken, r.start = '', -1
r.till = look_again(r)
move_row(r, r.owner, 'h')
save_all()
publish_freed()
return { now, 1 }
