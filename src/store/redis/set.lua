-- Changes rows, keys, or settings in one step; says of each change whether there was anything to change.

local not_after = num()
-- So long it is believed what a sidecar holds.
local HOLDS_LAST = 60000000

local function till()
  local job, gen, at, lasts = arg(), num(), num(), num()
  local r = row(job)
  if not r and redis.call('ZSCORE', index(owner, 'o'), job) then return lost_row(job) end
  if not r or r.gen ~= gen or r.place ~= 'o' then return false end
  r.till, r.lasts = at, lasts
  put_row(r)
  for _, undo in ipairs(taken_of(r)) do
    local name = undo[1]
    local count, who = P .. 'k:' .. name, holders(name)
    local is_new = redis.call('ZADD', who, at, paid(undo) .. ' ' .. job) == 1
    local lasts = max(week_after(at), redis.call('PTTL', count), redis.call('PTTL', who))
    redis.call('PEXPIRE', who, lasts)
    -- Where its holders or the count were lost, both may be.
    if redis.call('PEXPIRE', count, lasts) == 0 or is_new then
      local k = key(name)
      k.active, k.till, k.changed = max(k.active, held(name)), at, true
    end
  end
  return true
end

-- What siblings are told, and nothing is kept of.
local function say()
  publish(arg())
  return true
end

-- How many jobs of a queue the caller holds.
local function holding()
  local name, jobs = holds(arg()), num()
  local all = redis.call('HGETALL', name)
  for i = 1, #all, 2 do
    local at = tonumber(string.match(all[i + 1], ' (%d+)'))
    if at + HOLDS_LAST <= now then redis.call('HDEL', name, all[i]) end
  end
  redis.call('HSET', name, owner, string.format('%.0f %.0f', jobs, now))
  redis.call('PEXPIRE', name, HOLDS_LAST / 1000)
  return true
end

-- What a key has used is forgotten, but not its slots.
local function unused()
  local k = key(arg())
  local used = k.active > 0 or (k.shut and k.shut > now) or less(now, 0, k.eu, k.en)
  for _, w in ipairs(k.w) do used = used or not window_idle(w) end
  k.eu, k.en, k.last, k.shut, k.line, k.w, k.changed = 0, 0, 0, nil, nil, {}, true
  k.cleared = k.active > 0 and now or nil
  redis.call('DEL', P .. 'f:' .. k.name)
  k.shares = nil
  freed[#freed + 1] = k.name
  return used
end

-- A job that is out already takes its slots, whatever the limits say, and counts no start.
local function adopt()
  if now > not_after then return late() end
  local job, gen, at, lasts, lane, claim, blob = arg(), num(), num(), num(), arg(), arg(), arg()
  local limits = read_limits()
  local r = row(job)
  if r and (r.gen > gen or (r.gen == gen and r.place == 'o')) then return false end
  if r then end_row(r) end
  local taken = each_key(limits, function(k, same)
    occupy(k, job, same[1].pays, at)
    return { k.name, 0, same[1].pays }
  end)
  put_row({ job = job, gen = gen, place = 'o', till = at, owner = owner, lasts = lasts,
    lane = lane, claim = claim, limits = blob, taken = cmsgpack.pack(taken) })
  if gen == 0 then redis.call('HINCRBY', P .. 'meta', 'adopted', 1) end
  return true
end

-- The lanes of which jobs are offered: siblings are told once of each.
local offered = {}

-- Siblings may have a job that the caller holds: not where it is out, or there is a newer claim.
local function offer()
  if now > not_after then return late() end
  local claim = { job = arg(), gen = num(), made = num(), lasts = num(), lane = arg(), claim = arg(), limits = arg() }
  local r = row(claim.job)
  if r then
    if not gives_way(r, claim) and not (r.gen == claim.gen and r.place == 'h') then return false end
    end_row(r)
    if r.owner ~= owner then publish('row\n' .. r.job) end
  end
  claim.place, claim.till, claim.owner = 'h', 0, owner
  put_row(claim)
  offered[claim.lane] = true
  return true
end

-- What was offered is the caller's, under a claim number of its own.
local function own()
  if now > not_after then return late() end
  local job, gen, next, at = arg(), num(), num(), num()
  local r = row(job)
  if not r or r.place ~= 'h' or next <= gen then return false end
  if not is_taken_over(r, next) and (r.gen ~= gen or r.till ~= 0) then return false end
  local former = r.owner
  drop_row(r)
  r.gen, r.till, r.owner = next, at, owner
  put_row(r)
  if former ~= owner then publish('row\n' .. job) end
  return true
end

-- Limits set over HTTP, and when they end; without a text they are taken away: not while others may put back what
-- they know, and that with it.
local function override()
  local name, text, ends = arg(), arg(), num()
  local done
  if now > not_after then return late() end
  if text == '' and settling() then return too_soon() end
  redis.call('ZREM', P .. 'ends', name)
  if text == '' then
    done = redis.call('HDEL', P .. 'over', name) == 1
  else
    redis.call('HSET', P .. 'over', name, text)
    if ends >= 0 then redis.call('ZADD', P .. 'ends', ends, name) end
    done = true
  end
  redis.call('PEXPIRE', P .. 'over', WEEK)
  redis.call('PEXPIRE', P .. 'ends', WEEK)
  if done then
    redis.call('HINCRBY', P .. 'meta', 'over', 1)
    publish('over')
  end
  return done
end

-- What a caller knows of limits and settings made over HTTP in data that are lost: says how many of them were not
-- here, or -1 if it comes too late.
local function put_back()
  if now > not_after then return late() end
  if not settling() then return -1 end
  local count = 0
  for _ = 1, num() do
    local name, text, ends = arg(), arg(), num()
    if redis.call('HSETNX', P .. 'over', name, text) == 1 then
      if ends >= 0 then redis.call('ZADD', P .. 'ends', ends, name) end
      count = count + 1
    end
  end
  if count > 0 then
    redis.call('PEXPIRE', P .. 'over', WEEK)
    redis.call('PEXPIRE', P .. 'ends', WEEK)
    redis.call('HINCRBY', P .. 'meta', 'over', 1)
    publish('over')
  end
  return count
end

-- A queue was paused or resumed: a number says so, and a message.
local function paused()
  local number, queue, on = P .. 'n:' .. arg(), arg(), arg()
  redis.call('HINCRBY', number, 'version', 1)
  redis.call('HSET', number, 'value', on, 'put', now)
  redis.call('PEXPIRE', number, 24 * 3600 * 1000)
  publish('paused\n' .. on .. '\n' .. queue)
  return true
end

-- For tests: on a large server it takes long.
local function clear()
  local done = false
  keys, freed = {}, {}
  for _, name in ipairs(redis.call('KEYS', P .. '*')) do
    if name == P .. 'over' then redis.call('HINCRBY', P .. 'meta', 'over', 1) end
    if name ~= P .. 'meta' and name ~= P .. 'live' then
      redis.call('DEL', name)
      done = true
    end
  end
  return done
end

-- No starts of a key until a time; or as before, where it is shut for at least as long.
local function shut()
  local k, at, at_least = key(arg()), num(), num() == 1
  local known = k.shut and k.shut > now and k.shut or -1
  local wanted = at > now and at or -1
  if known == wanted or (at_least and known > wanted) then return false end
  k.shut = wanted > 0 and wanted or nil
  k.changed = true
  if wanted < known then freed[#freed + 1] = k.name end
  return true
end

local verbs = { till = till, say = say, holding = holding, adopt = adopt, offer = offer, own = own, override = override, clear = clear, shut = shut,
  unused = unused, paused = paused, put_back = put_back }

local told, failed = { now }, nil
for i = 1, num() do
  local done = verbs[arg()]()
  if type(done) == 'table' then
    -- What was done before stays, with its keys.
    failed = done
    break
  end
  told[i + 1] = type(done) == 'number' and done or (done and 1 or 0)
end
save_all()
publish_freed()
for lane in pairs(offered) do publish('offered\n' .. lane) end
return failed or told
