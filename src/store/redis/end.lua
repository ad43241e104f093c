-- The job is over, or not ours any more: its row and its slots go. A claim of -1 is any.

local told = { now }
for i = 1, num() do
  local job, gen, used = arg(), num(), {}
  local settles, limits = num(), nil
  for _ = 1, settles do used[arg()] = { amount = num(), counts_now = num() == 1 } end
  if settles > 0 then limits = read_limits() end
  -- What it had slots of, as the caller knows it.
  local had = {}
  for j = 1, num() do had[j] = { name = arg(), pays = arg() } end
  local r = row(job)
  if r and (gen < 0 or gen >= r.gen) then
    for _, undo in ipairs(settles > 0 and taken_of(r) or {}) do
      if used[undo[1]] then settle(key(undo[1]), undo, limits, used[undo[1]]) end
    end
    end_row(r)
    told[#told + 1] = tell(r)
    if r.owner ~= owner then publish('row\n' .. job) end
  elseif not r then
    -- Where the row was lost its slots are there still, and nobody is to put it back.
    redis.call('ZREM', index(owner, 'o'), job)
    for _, one in ipairs(had) do
      free_holder(key(one.name), one.pays .. ' ' .. job)
      -- It may wait, and be first in line.
      if leave_line(key(one.name), job) then freed[#freed + 1] = one.name end
    end
  end
end
save_all()
publish_freed()
return told
