-- A sidecar comes, or comes back: these are our data, and this is their epoch. Where there are none, an
-- epoch begins; if the caller has known one before, everything was lost, and nothing starts for a moment,
-- so that all can put back what they know.

local fresh, knew = arg(), arg() == '1'
local kind = redis.call('TYPE', P .. 'meta').ok
if kind ~= 'none' and kind ~= 'hash' then
  return redis.error_reply('FOREIGN ' .. P .. 'meta is a ' .. kind)
end
local known = redis.call('HMGET', P .. 'meta', 'format', 'epoch')
if kind == 'hash' and not known[1] then return redis.error_reply('FOREIGN ' .. P .. 'meta has no format') end
if known[1] and known[1] ~= '1' then return redis.error_reply('FOREIGN ' .. P .. 'meta is of format ' .. known[1]) end
if not known[2] then
  known[2] = fresh
  redis.call('HSET', P .. 'meta', 'format', '1', 'epoch', fresh, 'opens', knew and now + 1000000 or 0)
end
if redis.call('ZADD', P .. 'live', now, owner) == 1 then publish('joined') end
redis.call('PEXPIRE', P .. 'live', WEEK)
redis.call('PEXPIRE', P .. 'meta', WEEK)
return { now, known[2] }
