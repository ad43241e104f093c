-- Reads: a row, keys as they are kept, how many jobs the caller has out, what others offer, how many jobs of a queue
-- they hold, their rows, limits set over HTTP.

local verb = arg()
local told = { now }
if verb == 'row' then
  local r = row(arg())
  if r then told[2] = tell(r) end
elseif verb == 'keys' then
  for i = 1, num() do
    local name = arg()
    -- Where nothing can be written it is told as it is.
    pcall(function()
      if redis.call('ZCOUNT', holders(name), '-inf', now - LOST) > 0 then
        free_lost(key(name))
        save_all()
      end
    end)
    told[2 * i] = redis.call('GET', P .. 'k:' .. name)
    told[2 * i + 1] = redis.call('HGETALL', P .. 'f:' .. name)
  end
elseif verb == 'count' then
  told[2] = redis.call('ZCARD', index(owner, 'o'))
elseif verb == 'over' then
  told[2] = tonumber(redis.call('HGET', P .. 'meta', 'over') or '0')
  told[3] = redis.call('HGETALL', P .. 'over')
elseif verb == 'others' then
  local told_by, held = redis.call('HGETALL', holds(arg())), 0
  for i = 1, #told_by, 2 do
    local jobs, at = string.match(told_by[i + 1], '(%d+) (%d+)')
    -- By then its claims are over, if it is gone.
    if told_by[i] ~= owner and tonumber(at) + 60000000 > now then held = held + tonumber(jobs) end
  end
  told[2] = held
elseif verb == 'rows' then
  local most = num()
  for _, other in ipairs(redis.call('ZRANGE', P .. 'live', 0, 999)) do
    if #told <= most then
      for _, job in ipairs(redis.call('ZRANGE', index(other, 'o'), 0, most - #told)) do
        local r = row(job)
        if r then told[#told + 1] = tell(r) end
      end
    end
  end
elseif verb == 'offered' then
  -- The server does nothing else meanwhile: after so many offers the caller asks again, and the next ones are read.
  local LOOK = 5000
  local lane, most, from, left = arg(), num(), num(), LOOK
  local next_look, seen_at, others = from + LOOK, {}, {}
  told[2] = 0
  local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
  for i = 1, #known, 2 do
    if known[i] ~= owner then others[#others + 1] = known[i] end
    seen_at[known[i]] = tonumber(known[i + 1])
  end
  -- By name, as beats come between two looks.
  table.sort(others)
  for _, other in ipairs(others) do
    local seen, set = seen_at[other], index(other, 'h')
    -- As in due.lua: who is gone for certain.
    local alive = seen + 5000000 > now
    local jobs = redis.call('ZRANGEBYSCORE', set, 0, 0, 'LIMIT', from, left)
    for _, job in ipairs(jobs) do
      if #told > most + 1 then break end
      local of = redis.call('HGET', P .. 'r:' .. job, 'lane')
      local r = of == lane and row(job)
      if r and r.place == 'h' and (alive or stands(r, seen)) then told[#told + 1] = tell(r) end
    end
    left = left - #jobs
    from = max(from - redis.call('ZCOUNT', set, 0, 0), 0)
  end
  if left == 0 then told[2] = next_look end
end
return told
