-- A sidecar comes, or comes back: these are our data, and this is their epoch. Where there are none, an
-- epoch begins. If the first caller that knew one before knew another, everything was lost, and nothing
-- starts for a while, so that all can put back what they know.

local fresh, knew, settling = arg(), arg(), num()
local kind = redis.call('TYPE', P .. 'meta').ok
if kind ~= 'none' and kind ~= 'hash' then
  return redis.error_reply('FOREIGN ' .. P .. 'meta is a ' .. kind)
end
local known = redis.call('HMGET', P .. 'meta', 'format', 'epoch', 'opens')
if kind == 'hash' and not known[1] then return redis.error_reply('FOREIGN ' .. P .. 'meta has no format') end
if known[1] and known[1] ~= '1' then return redis.error_reply('FOREIGN ' .. P .. 'meta is of format ' .. known[1]) end
local lost = knew ~= '' and knew ~= known[2] and tonumber(known[3] or '0') == 0
if not known[2] then
  known[2] = fresh
  redis.call('HSET', P .. 'meta', 'format', '1', 'epoch', fresh, 'opens', 0)
end
if lost then redis.call('HSET', P .. 'meta', 'opens', now + settling) end
if redis.call('ZADD', P .. 'live', now, owner) == 1 or lost then
  -- Also where nobody else is known: they are not any more.
  redis.call('PUBLISH', P .. 'wake', owner .. '\njoined')
end
redis.call('PEXPIRE', P .. 'live', WEEK)
redis.call('PEXPIRE', P .. 'meta', WEEK)
return { now, known[2] }
