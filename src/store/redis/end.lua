-- The job is over, or not ours any more: its row and its slots go. A claim of -1 is any.

local told = { now }
for i = 1, num() do
  local job, gen, used = arg(), num(), {}
  for _ = 1, num() do used[#used + 1] = { amount = num(), limits = read_limits() } end
  local r = row(job)
  if r and (gen < 0 or gen >= r.gen) then
    for _, u in ipairs(used) do
      local l = u.limits[1]
      for _, undo in ipairs(taken_of(r)) do
        if undo[1] == l.key then settle(key(l.key), undo, l, u.amount) end
      end
    end
    end_row(r)
    told[#told + 1] = tell(r)
    if r.owner ~= owner then publish('row\n' .. job) end
  end
end
save_all()
publish_freed()
return told
