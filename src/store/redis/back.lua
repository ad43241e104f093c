-- The hand-out did not happen: the caller's row goes, and the start is uncounted.

local not_after, job, gen = num(), arg(), num()
if now > not_after then return late() end
local r = row(job)
if not r or r.gen ~= gen or r.place ~= 'o' or r.owner ~= owner then return { now, 0 } end
for _, undo in ipairs(taken_of(r)) do
  local k = key(undo[1])
  undo_take(k, job, undo)
  k.changed = true
  freed[#freed + 1] = undo[1]
end
drop_row(r)
save_all()
publish_freed()
return { now, 1 }
