-- Reads: a row, keys as they are kept, how many rows the caller has, what others offer, limits set over HTTP.

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
elseif verb == 'offered' then
  local lane, most = arg(), num()
  local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
  for i = 1, #known, 2 do
    local other, by = known[i], now
    -- As in due.lua: who is gone for certain, and how late the others may be.
    if tonumber(known[i + 1]) + 5000000 > now then by = now - 3000000 end
    if other ~= owner then
      for _, job in ipairs(redis.call('ZRANGEBYSCORE', index(other, 'h'), '-inf', by, 'LIMIT', 0, 256)) do
        local r = row(job)
        if r and r.lane == lane and not r.hidden and r.place == 'h' and #told <= most then
          told[#told + 1] = tell(r)
        end
      end
    end
  end
end
return told
