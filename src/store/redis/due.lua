-- The caller lives; what must be looked at: its own overdue rows, and those of others that have not
-- looked in time.

local most = num()
-- How long a sidecar may say nothing before it counts as gone, how late the owner of a row may be, and
-- how long whoever is handed the row of another has for it.
local SILENCE, PATIENCE, LEASE = 5000000, 3000000, 2000000

if redis.call('ZADD', P .. 'live', now, owner) == 1 then publish('joined') end
for _, name in ipairs({ 'live', 'meta', 'over', 'h:' .. owner, 'o:' .. owner, 'q:' .. owner }) do
  redis.call('PEXPIRE', P .. name, WEEK)
end

-- The rows of an index that are due by a time; what is gone by itself goes from the index too.
local function overdue(of, place, by, count)
  local found = {}
  local set = index(of, place)
  for _, job in ipairs(redis.call('ZRANGEBYSCORE', set, '-inf', by, 'LIMIT', 0, count)) do
    local r = row(job)
    if r and r.owner == of and r.place == place then
      found[#found + 1] = r
    else
      redis.call('ZREM', set, job)
    end
  end
  return found
end

local rows, first = {}, NEVER
for _, place in ipairs({ 'h', 'o' }) do
  for _, r in ipairs(overdue(owner, place, now, most)) do rows[#rows + 1] = r end
  local next = redis.call('ZRANGE', index(owner, place), 0, 0, 'WITHSCORES')
  if next[2] then first = min(first, tonumber(next[2])) end
end
table.sort(rows, function(a, b)
  if a.till ~= b.till then return a.till < b.till end
  return a.job < b.job
end)

local live, lanes = 0, {}
local known = redis.call('ZRANGE', P .. 'live', 0, 999, 'WITHSCORES')
for i = 1, #known, 2 do
  local other, seen = known[i], tonumber(known[i + 1])
  if other ~= owner then
    local alive = seen + SILENCE > now
    if alive then live = live + 1 end
    local by = now
    if alive then by = now - PATIENCE end
    for _, r in ipairs(overdue(other, 'o', by, max(most - #rows, 0))) do
      local told = tell(r)
      r.till = now + LEASE
      put_row(r)
      r.told = told
      rows[#rows + 1] = r
    end
    for _, r in ipairs(overdue(other, 'h', by, 64)) do
      -- By then the backend has the job back.
      if r.till > EARLY and r.till + r.lasts + 60000000 < now then drop_row(r) elseif not r.hidden then lanes[r.lane] = true end
    end
    if not alive and redis.call('ZCARD', index(other, 'o')) == 0 and redis.call('ZCARD', index(other, 'h')) == 0 then
      redis.call('ZREM', P .. 'live', other)
      redis.call('DEL', by_queue(other))
    end
  end
end

local others = redis.call('ZCARD', P .. 'live') - 1
local told = { now, live, others, first, tonumber(redis.call('HGET', P .. 'meta', 'over') or '0'), {} }
for lane in pairs(lanes) do table.insert(told[6], lane) end
for i, r in ipairs(rows) do
  if i > most then break end
  told[6 + i] = r.told or tell(r)
end
return told
