-- A sidecar comes, or comes back: these are our data, and this is their epoch. Where there are none, an
-- epoch begins; what older ones have there of rows and of limits set over HTTP goes. If the first caller that knew one before knew another, everything was lost, and nothing
-- starts for a while, so that all can put back what they know.

local fresh, knew, settling, silent = arg(), arg(), num(), num()
local kind = redis.call('TYPE', P .. 'meta').ok
if kind ~= 'none' and kind ~= 'hash' then
  return redis.error_reply('FOREIGN ' .. P .. 'meta is a ' .. kind)
end
local known = redis.call('HMGET', P .. 'meta', 'format', 'epoch', 'opens')
if kind == 'hash' and not known[1] then return redis.error_reply('FOREIGN ' .. P .. 'meta has no format') end
if known[1] and known[1] ~= '1' then return redis.error_reply('FOREIGN ' .. P .. 'meta is of format ' .. known[1]) end
if known[1] and not known[2] then
  for _, of in ipairs(redis.call('ZRANGE', P .. 'live', 0, -1)) do
    for _, place in ipairs({ 'h', 'o' }) do
      for _, job in ipairs(redis.call('ZRANGE', index(of, place), 0, -1)) do
        local r = row(job)
        if r then end_row(r) end
      end
      redis.call('DEL', index(of, place))
    end
  end
  save_all()
  redis.call('DEL', P .. 'over', P .. 'ends')
  redis.call('HINCRBY', P .. 'meta', 'over', 1)
  known[3] = '0'
end
local opens = tonumber(known[3] or '0')
local lost = knew ~= '' and knew ~= known[2] and opens == 0
-- The time for that went by while nobody could be heard: it begins again.
local last = tonumber(redis.call('ZREVRANGE', P .. 'live', 0, 0, 'WITHSCORES')[2] or now)
if last < opens and now - last > silent then lost = true end
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
