-- The job is over, or not ours any more: its row and its slots go. A claim of -1 is any.

local told = { now }
for i = 1, num() do
  local job, gen = arg(), num()
  local r = row(job)
  if r and (gen < 0 or gen >= r.gen) then
    end_row(r)
    told[#told + 1] = tell(r)
    if r.owner ~= owner then publish('row\n' .. job) end
  end
end
save_all()
publish_freed()
return told
