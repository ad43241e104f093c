-- One step on a number that all share.

local name, verb, value, other = P .. 'n:' .. arg(), arg(), num(), arg()
local f = redis.call('HMGET', name, 'value', 'version', 'put', 'epoch')
-- One of data that counted as lost is none: what it has counted is over, and nobody will say so. One without a word of
-- it is a pause, and stays.
if f[4] and f[4] ~= meta[1] then f = {} end
local known, version, put = tonumber(f[1] or '0'), tonumber(f[2] or '0'), tonumber(f[3] or '0')
local done = true
if verb == 'less' then
  local gone, since = num(), num()
  -- Who has set the number since may have counted without what has gone.
  if since == put then value = value - gone end
end
if verb == 'add' or verb == 'less' then
  -- Less is always allowed.
  done = value <= 0 or other == '' or known + value <= tonumber(other)
  if done then known = known + value end
elseif verb == 'put' then
  done = other == '' or tonumber(other) == version
  if done then known, put = value, now end
end
if done and verb ~= 'read' then
  version = version + 1
  redis.call('HSET', name, 'value', known, 'version', version, 'put', put, 'epoch', meta[1])
  redis.call('PEXPIRE', name, 24 * 3600 * 1000)
end
return { now, known, version, put, done and 1 or 0 }
