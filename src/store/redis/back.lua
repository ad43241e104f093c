-- The hand-out did not happen: the caller's row goes, and the start is uncounted.

local not_after, job, gen = num(), arg(), num()
if now > not_after then return late() end
local r = row(job)
if not r or r.gen ~= gen or r.place ~= 'o' or r.owner ~= owner then return { now, 0 } end
each_slot(r, undo_take)
drop_row(r)
save_all()
publish_freed()
return { now, 1 }
