-- Reads: a row, keys as they are kept, how many rows the caller has, what others offer, how many jobs of a queue
-- they hold, their rows, limits set over HTTP.

local verb = arg()
local told = { now }
if verb == 'row' then
  local r = row(arg())
  if r then told[2] = tell(r) end
elseif verb == 'keys' then
  for i = 1, num() do told[i + 1] = redis.call('GET', P .. 'k:' .. arg()) end
elseif verb == 'count' then
  told[2] = redis.call('ZCARD', index(owner, arg()))
elseif verb == 'over' then
  told[2] = tonumber(redis.call('HGET', P .. 'meta', 'over') or '0')
  told[3] = redis.call('HGETALL', P .. 'over')
elseif verb == 'others' then
  local queue, held = arg(), 0
  local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
  for i = 1, #known, 2 do
    local other, seen = known[i], tonumber(known[i + 1])
    if other ~= owner then
      local rows = index(other, 'h')
      -- No more than it has at all: a sidecar of an earlier version takes rows from there and not from here.
      local count = min(redis.call('ZLEXCOUNT', by_queue(other), '[' .. queue .. '\n', '(' .. queue .. '\11'),
        redis.call('ZCARD', rows))
      if count > 0 and seen + 5000000 <= now then
        -- It is gone: by then the backend has all of its jobs back.
        local last = redis.call('ZRANGE', rows, -1, -1, 'WITHSCORES')
        local r = row(last[1])
        if not r or max(tonumber(last[2]), seen) + r.lasts <= now then count = 0 end
      end
      held = held + count
    end
  end
  told[2] = held
elseif verb == 'rows' then
  local most = num()
  local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
  for i = 1, #known, 2 do
    local other, seen = known[i], tonumber(known[i + 1])
    for _, place in ipairs({ 'h', 'o' }) do
      if other ~= owner and #told <= most then
        for _, job in ipairs(redis.call('ZRANGE', index(other, place), 0, most - #told)) do
          local r = row(job)
          -- As above.
          local stays = place == 'o' or seen + 5000000 > now
          if r and (stays or max(r.till, seen) + r.lasts > now) then told[#told + 1] = tell(r) end
        end
      end
    end
  end
elseif verb == 'offered' then
  local lane, most = arg(), num()
  local queue = queue_of(lane)
  local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
  for i = 1, #known, 2 do
    local other, seen = known[i], tonumber(known[i + 1])
    -- As in due.lua: who is gone for certain.
    local alive = seen + 5000000 > now
    if other ~= owner then
      local found = {}
      -- More than anyone holds; the server does nothing else meanwhile.
      for _, name in ipairs(redis.call('ZRANGEBYLEX', by_queue(other), '[' .. queue .. '\n', '(' .. queue .. '\11', 'LIMIT', 0, 2048)) do
        local job = sub(name, #queue + 2)
        local till = tonumber(redis.call('ZSCORE', index(other, 'h'), job) or NEVER)
        if till == 0 then found[#found + 1] = { job = job, till = till } end
      end
      table.sort(found, sooner)
      for _, one in ipairs(found) do
        if #told > most then break end
        local r = row(one.job)
        if r and r.lane == lane and not r.hidden and r.place == 'h' and (alive or stands(r, seen)) then
          told[#told + 1] = tell(r)
        end
      end
    end
  end
end
return told
