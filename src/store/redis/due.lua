-- The caller lives; what must be looked at: its own overdue rows, and those of others that have not
-- looked in time. Where it looks after calls alone, rows of jobs are left to others.

local most, only_calls, beats_known = num(), num() == 1, num()
-- How long a sidecar may say nothing before it counts as gone, how late the owner of a row may be, how
-- long whoever is handed the row of another has for it, and how often each calls.
local SILENCE, PATIENCE, LEASE, BEAT = 5000000, 3000000, 2000000, 2000000
-- So many held rows of another are looked at in one go.
local SOME = 256

-- Beats that the caller knows of are missing: the data are older than they were. Where somebody else has written to them
-- since, `seen` does not say so. A replica that takes over may lack the last ones of each sidecar, which has one in a
-- second at most.
local last = tonumber(redis.call('ZSCORE', P .. 'live', owner) or '0')
local beats = redis.call('HINCRBY', P .. 'meta', 'beats', last + 1000000 <= now and 1 or 0)
if beats_known > beats + 2 * redis.call('ZCARD', P .. 'live') then
  redis.call('HDEL', P .. 'meta', 'epoch')
  return redis.error_reply('WIPED these data are older than they were')
end
if redis.call('ZADD', P .. 'live', now, owner) == 1 then publish('joined') end
for _, name in ipairs({ 'live', 'meta', 'over', 'ends', 'h:' .. owner, 'o:' .. owner }) do
  redis.call('PEXPIRE', P .. name, WEEK)
end

-- Limits set over HTTP are kept for a day after their end, for whoever looks at them.
for _, name in ipairs(redis.call('ZRANGEBYSCORE', P .. 'ends', '-inf', now - 24 * 3600 * 1000000, 'LIMIT', 0, 100)) do
  redis.call('HDEL', P .. 'over', name)
  redis.call('ZREM', P .. 'ends', name)
end

-- Whether a row of the caller's is gone: it is to put it back.
local lost

-- The rows of an index that are due by a time; what is gone by itself goes from the index too. However many jobs stand
-- before them, calls are found: their ids are told apart before their rows are read.
local function overdue(of, place, after, by, from, count)
  local found = {}
  local set = index(of, place)
  local asked = only_calls and count > 0 and -1 or count
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', set, after, by, 'LIMIT', from, asked)) do
    if #found == count then break end
    -- `Claim::CALL_IDS`.
    local may_be = not only_calls or string.sub(job, 1, 5) == 'call-'
    local r = may_be and row(job)
    if not may_be or r and only_calls and not is_call(r.lane) then
      -- A job, which somebody else looks after.
    elseif r and r.owner == of and r.place == place then
      found[#found + 1] = r
    elseif not r and of == owner and place == 'o' then
      lost = lost_row(job)
    else
      redis.call('ZREM', set, job)
    end
  end
  return found
end

local rows, first = {}, NEVER
local function mine(place, after, by, count)
  local found = overdue(owner, place, after, by, 0, count)
  for _, r in ipairs(found) do rows[#rows + 1] = r end
  return count - #found
end
-- Each place has a limit of its own. What was offered stays so until somebody wants it: it comes last, and is
-- no reason to look again.
local room = mine('o', '-inf', now, most)
mine('h', '-inf', 0, mine('h', '(0', now, most))
for place, after in pairs({ o = '-inf', h = '(0' }) do
  local next = redis.call('ZRANGEBYSCORE', index(owner, place), after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  if next[2] then first = min(first, tonumber(next[2])) end
end
table.sort(rows, sooner)

local live, lanes = 0, {}
local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
for i = 1, #known, 2 do
  local other, seen = known[i], tonumber(known[i + 1])
  if other ~= owner then
    local alive = seen + SILENCE > now
    if alive then live = live + 1 end
    local by = now
    if alive then by = now - PATIENCE end
    for _, r in ipairs(overdue(other, 'o', '-inf', by, 0, room)) do
      local told = tell(r)
      r.till = now + LEASE
      put_row(r)
      r.told = told
      rows[#rows + 1] = r
      room = room - 1
    end
    -- Another part of them each time, so that no lane stays behind those of others.
    local parts = max(math.ceil(redis.call('ZCOUNT', index(other, 'h'), '-inf', by) / SOME), 1)
    local part = floor(now / BEAT) % parts
    for _, r in ipairs(overdue(other, 'h', '-inf', by, part * SOME, SOME)) do
      -- By then the backend has the job back.
      if max(r.till, seen) + r.lasts + 60000000 < now then
        drop_row(r)
      elseif r.till == 0 and (alive or stands(r, seen)) then
        lanes[r.lane] = true
      end
    end
    -- Its rows may be due later than in a week.
    if not alive then redis.call('PEXPIRE', index(other, 'o'), WEEK) end
    if not alive and redis.call('ZCARD', index(other, 'o')) == 0 and redis.call('ZCARD', index(other, 'h')) == 0 then
      redis.call('ZREM', P .. 'live', other)
    end
  end
end

if lost then return lost end
local others = redis.call('ZCARD', P .. 'live') - 1
local told = { now, live, others, first, tonumber(redis.call('HGET', P .. 'meta', 'over') or '0'), ahead,
  tonumber(redis.call('HGET', P .. 'meta', 'adopted') or '0'), beats, {} }
for lane in pairs(lanes) do table.insert(told[9], lane) end
for i, r in ipairs(rows) do told[9 + i] = r.told or tell(r) end
return told
