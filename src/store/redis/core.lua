-- The limiter in the server: what src/limit does, on the same state, with the same answers. All scripts
-- begin with this. Times are microseconds since 1970, which a double holds exactly until the year 2255.

local P = KEYS[1]
local EARLY = 5000
local NEVER = 9007199254740992
-- What nobody has touched for a week is forgotten.
local WEEK = 7 * 24 * 3600 * 1000
local pack, unpack, sub, floor, max, min = struct.pack, struct.unpack, string.sub, math.floor, math.max, math.min

local argn = 0
local function arg()
  argn = argn + 1
  return ARGV[argn]
end
local function num()
  argn = argn + 1
  return tonumber(ARGV[argn])
end

-- The time: the server's, unless a test gives one.
local function clock()
  local given = arg()
  if given ~= '' then return tonumber(given) end
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local now = clock()
local owner = arg()
-- What the caller knows of these data; it has to announce itself when they are others.
local epoch = arg()
-- The time at which the caller last wrote here, as it was told; 0: it does not know.
local wrote = num()
local meta = redis.call('HMGET', P .. 'meta', 'epoch', 'opens', 'seen', 'ahead')
if epoch ~= '' and meta[1] ~= epoch then return redis.error_reply('WIPED these are other data') end

-- Time does not go back: where the server's clock was set back, ours goes on from where it was, and is ahead of
-- the server's by so much from then on. Servers that take over from each other may be some ms apart.
local SMALL_STEP = 100000
local seen, ahead = tonumber(meta[3] or '0'), tonumber(meta[4] or '0')
-- Data of before that are older than they were: as a snapshot that was loaded, or a replica that was far behind. A
-- replica is behind by less than this else. They are as good as lost, and whoever comes next begins them anew.
local OLDER = 1500000
if wrote > seen + OLDER then
  redis.pcall('HDEL', P .. 'meta', 'epoch')
  return redis.error_reply('WIPED these data are older than they were')
end
now = now + ahead
local new_time = now > seen + SMALL_STEP
if now + SMALL_STEP < seen then
  ahead = ahead + seen - now
  new_time = true
end
now = max(now, seen)
-- Ten times a second is enough. Where nothing can be written, what only reads or frees goes on.
if new_time and epoch ~= '' then redis.pcall('HSET', P .. 'meta', 'seen', now, 'ahead', ahead) end

-- Whether these data began anew, and others may still put back what they know.
local function settling()
  return meta[2] and now < tonumber(meta[2])
end

local function too_soon()
  return redis.error_reply('SETTLING others have to announce themselves first')
end

-- Who asked goes by its not being done, and may have asked for something else since.
local function late()
  return redis.error_reply('LATE nobody waits for this any more')
end

-- Keys ---------------------------------------------------------------------------------------------

local keys = {}

-- Who has slots of a key: what each pays, and its job, by the time of its row. A server that is told to evicts single
-- keys, and anybody may delete one. What the count of a key or a row has lost is found by this.
-- The set stands beside a count that says the same. Counting the set at each question would do without the count; but
-- with costs its members have to be added up, and a key with 10,000 slots would cost that at each start. Without the set
-- the count would be all there is, and a count that is wrong by one after an eviction stays wrong: nobody could say
-- whose slot it was.
local function holders(name)
  return P .. 's:' .. name
end

local MOST = 4294967295

-- The slots of all holders of a key.
local function held(name)
  local sum = 0
  for _, holder in ipairs(redis.call('ZRANGE', holders(name), 0, -1)) do
    sum = min(sum + tonumber(string.match(holder, '^%d+')), MOST)
  end
  return sum
end

-- What is known of a key; read once in a call.
local function key(name)
  local k = keys[name]
  if k then return k end
  local s = redis.call('GET', P .. 'k:' .. name)
  if not s then
    k = { name = name, active = held(name), seen = 0, eu = 0, en = 0, last = 0, w = {} }
  else
    local pos, has, n
    k = { name = name, w = {} }
    k.active, k.seen, k.eu, k.en, k.last, has, pos = unpack('<I4I7I7I2I7B', s)
    if has % 2 == 1 then k.shut, pos = unpack('<I7', s, pos) end
    if has % 4 >= 2 then
      local line = {}
      line.first, line.pays, line.done, line.till, line.stood, line.gap, pos = unpack('<I2c0I4I7I7I7I7', s, pos)
      k.line = line
    end
    -- What was granted until then is counted no more.
    if has >= 8 then k.cleared, pos = unpack('<I7', s, pos) end
    n, pos = unpack('B', s, pos)
    for i = 1, n do
      local w, len = {}, 0
      w.kind, w.period, len, pos = unpack('<BI7B', s, pos)
      w.name = sub(s, pos, pos + len - 1)
      len, pos = unpack('<I2', s, pos + len)
      w.s = sub(s, pos, pos + len - 1)
      pos = pos + len
      k.w[i] = w
    end
    if k.seen > now then now = k.seen end
  end
  keys[name] = k
  return k
end

-- How long what is needed at that time is kept.
local function week_after(till)
  return WEEK + max(floor((till - now) / 1000), 0)
end

-- The longest time that a window may last: a calendar's has an hour more where clocks go back in it.
local function longest(period, name)
  if name == '' or name == 'fixed' then return period end
  return period + 3600 * 1000000
end

-- The last moment at which anything of a window counts.
local function window_ends(w)
  if w.kind == 0 then
    if #w.s == 0 then return 0 end
    return unpack('<I7', w.s, #w.s - 6) + w.period + EARLY
  elseif w.kind == 1 then
    return now + 2 * w.period + 4 * EARLY
  end
  local _, ends, _, next = unpack('<I7I7I4I4', w.s)
  if next > 0 then return ends + longest(w.period, w.name) end
  return ends
end

-- So long is kept what groups were served after the last of them was asked for, and the last start of a key with spacing.
local KEPT, SPACED = 60000000, 3600000000

local function save(k)
  local has = (k.shut and 1 or 0) + (k.line and 2 or 0) + (k.cleared and 8 or 0)
  local parts = { pack('<I4I7I7I2I7B', k.active, now, k.eu, k.en, k.last, has) }
  local ends = k.eu + 1
  if k.last > 0 then ends = max(ends, k.last + SPACED) end
  local n = 1
  if k.shut then
    n = n + 1
    parts[n] = pack('<I7', k.shut)
    ends = max(ends, k.shut)
  end
  if k.line then
    n = n + 1
    local line = k.line
    parts[n] = pack('<I2c0I4I7I7I7I7', #line.first, line.first, line.pays, line.done, line.till, line.stood, line.gap)
    ends = max(ends, k.line.till)
  end
  if k.cleared then
    n = n + 1
    parts[n] = pack('<I7', k.cleared)
  end
  n = n + 1
  parts[n] = pack('B', #k.w)
  for _, w in ipairs(k.w) do
    n = n + 1
    parts[n] = pack('<BI7B', w.kind, w.period, #w.name) .. w.name .. pack('<I2', #w.s) .. w.s
    ends = max(ends, window_ends(w))
  end
  -- Kept as long as anything counts; slots end by deed, or when nobody is left to end them, a week after the
  -- time of the last of their rows.
  local lasts = floor((ends - now) / 1000) + 1000
  if k.active > 0 then lasts = max(lasts, week_after(k.till or 0), redis.call('PTTL', P .. 'k:' .. k.name)) end
  if lasts > 2 * WEEK * 60 then lasts = 2 * WEEK * 60 end
  if k.till then redis.call('PEXPIRE', holders(k.name), lasts) end
  if k.active == 0 and ends <= now then
    redis.call('DEL', P .. 'k:' .. k.name)
  else
    redis.call('SET', P .. 'k:' .. k.name, table.concat(parts), 'PX', lasts)
  end
  local f = k.shared and k.shares
  if f then
    redis.call('HSET', P .. 'f:' .. k.name, '',
      string.format('%.0f %.0f %.0f %.0f %.0f', f.turn, f.a, f.b, f.turned, f.asked))
    redis.call('PEXPIRE', P .. 'f:' .. k.name, KEPT / 1000)
  end
end

-- Sliding windows: a log of up to 128 starts, else a ring of 128 sub-windows -------------------------

local SLOTS = 128

local function log_gone(w)
  local s, keep = w.s, w.period + EARLY
  local low, high = 0, #s / 7
  if high == 0 or (unpack('<I7', s)) + keep > now then return 0 end
  while low < high do
    local mid = floor((low + high) / 2)
    if (unpack('<I7', s, mid * 7 + 1)) + keep <= now then low = mid + 1 else high = mid end
  end
  return low
end

local function ring_open(w)
  local r = {}
  r.low, r.total = unpack('<I7I4', w.s)
  r.width = math.ceil((w.period + 2 * EARLY) / (SLOTS - 2))
  r.keep = w.period + EARLY
  return r
end

local function ring_at(w, n)
  return (unpack('<I4', w.s, 12 + (n % SLOTS) * 4))
end

local function ring_put(w, n, count)
  local at = 11 + (n % SLOTS) * 4
  w.s = sub(w.s, 1, at) .. pack('<I4', count) .. sub(w.s, at + 5)
end

local function ring_close(w, r)
  w.s = pack('<I7I4', r.low, r.total) .. sub(w.s, 12)
end

local function ring_gone(r)
  return floor(max(now - r.keep, 0) / r.width)
end

local function ring_count(w, r)
  local count = r.total
  for n = r.low, min(ring_gone(r), r.low + SLOTS) - 1 do count = count - ring_at(w, n) end
  return count
end

local function ring_clear(w, r, low)
  local gone = 0
  for n = r.low, min(low, r.low + SLOTS) - 1 do
    local count = ring_at(w, n)
    if count > 0 then
      gone = gone + count
      ring_put(w, n, 0)
    end
  end
  r.total = r.total - gone
  r.low = max(r.low, low)
  return gone
end

local function ring_add(w, r, at, cost)
  local n = max(floor(at / r.width), r.low)
  if n - r.low >= SLOTS then
    local low = n - (SLOTS - 1)
    local gone = ring_clear(w, r, low)
    ring_put(w, low, ring_at(w, low) + gone)
    r.total = r.total + gone
  end
  cost = min(cost, MOST - r.total)
  ring_put(w, n, ring_at(w, n) + cost)
  r.total = r.total + cost
end

local function sliding_count(w)
  if w.kind == 0 then return #w.s / 7 - log_gone(w) end
  return ring_count(w, ring_open(w))
end

-- When the start with `nth` older ones beside it leaves; nil if there are not so many.
local function sliding_leaves(w, nth)
  if w.kind == 0 then
    local at = (log_gone(w) + nth) * 7
    if at + 7 > #w.s then return nil end
    return (unpack('<I7', w.s, at + 1)) + w.period + EARLY
  end
  local r, older = ring_open(w), 0
  for n = max(ring_gone(r), r.low), r.low + SLOTS - 1 do
    older = older + ring_at(w, n)
    if older > nth then return (n + 1) * r.width + r.keep end
  end
  return nil
end

local function sliding_add(w, at, cost)
  if w.kind == 1 then
    local r = ring_open(w)
    ring_clear(w, r, ring_gone(r))
    if r.total > 0 then
      ring_add(w, r, at, cost)
      ring_close(w, r)
      return
    end
    w.kind, w.s = 0, ''
  end
  local gone = log_gone(w)
  if gone > 0 then w.s = sub(w.s, gone * 7 + 1) end
  local n = #w.s / 7
  if n >= SLOTS or cost > 1 then
    local log, first = w.s, n > 0 and (unpack('<I7', w.s)) or at
    w.kind, w.s = 1, pack('<I7I4', 0, 0) .. string.rep('\0', SLOTS * 4)
    local r = ring_open(w)
    r.low = floor(max(first - r.keep, 0) / r.width)
    for i = 0, n - 1 do ring_add(w, r, (unpack('<I7', log, i * 7 + 1)), 1) end
    ring_clear(w, r, ring_gone(r))
    ring_add(w, r, at, cost)
    ring_close(w, r)
    return
  end
  while n > 0 and (unpack('<I7', w.s, n * 7 - 6)) > at do n = n - 1 end
  w.s = sub(w.s, 1, n * 7) .. pack('<I7', at) .. sub(w.s, n * 7 + 1)
end

-- Uncounts so much of a start, the newest or not, if it is there still.
local function sliding_remove(w, at, cost)
  if w.kind == 0 then
    -- Mostly it is near the end: starts are undone within moments, and few settle to nothing.
    for i = #w.s - 6, 1, -7 do
      local start = unpack('<I7', w.s, i)
      if start == at then w.s = sub(w.s, 1, i - 1) .. sub(w.s, i + 7) end
      if start <= at then return end
    end
    return
  end
  local r = ring_open(w)
  local n = floor(at / r.width)
  if n < r.low or n - r.low >= SLOTS then return end
  local count = ring_at(w, n)
  cost = min(cost, count)
  ring_put(w, n, count - cost)
  r.total = r.total - cost
  ring_close(w, r)
end

-- Windows with edges: fixed ones are reckoned, those of a calendar come with the question ------------

local function edges(rate, at)
  if rate.kind == 'fixed' then
    local starts = floor(at / rate.period) * rate.period
    return starts, starts + rate.period
  end
  local e = rate.edges
  for i = 1, #e - 1 do
    if at >= e[i] and at < e[i + 1] then return e[i], e[i + 1] end
  end
  -- The caller's clock is far from ours: the nearest that it knows, which frees nothing too soon.
  if at < e[1] then return e[1], e[2] end
  return e[#e - 1], max(e[#e], at + 1)
end

local function edged_at(w, rate)
  local starts, ends, count, next = unpack('<I7I7I4I4', w.s)
  if now < ends then return starts, ends, count, next end
  local s, e = edges(rate, now)
  return s, e, s == ends and next or 0, 0
end

-- When more fits than does under this limit now.
local function edged_grows(w, rate, limit)
  local _, ends, count, next = edged_at(w, rate)
  if count == 0 then return nil end
  if max(limit - next, 0) > max(limit - count, 0) then return ends end
  local _, after = edges(rate, ends)
  return after
end

local function edged_add(w, rate, at, cost)
  local starts, ends, count, next = edged_at(w, rate)
  if at + EARLY >= ends then next = min(next + cost, MOST) end
  w.s = pack('<I7I7I4I4', starts, ends, min(count + cost, MOST), next)
end

local function edged_remove(w, at, as_of, cost)
  local starts, ends, count, next = unpack('<I7I7I4I4', w.s)
  if starts <= as_of and as_of < ends then
    count = max(count - cost, 0)
    if at + EARLY >= ends then next = max(next - cost, 0) end
  elseif as_of < starts and at + EARLY >= starts then
    count = max(count - cost, 0)
  end
  w.s = pack('<I7I7I4I4', starts, ends, count, next)
end

-- All windows of a key -----------------------------------------------------------------------------

local function window(k, rate)
  for _, w in ipairs(k.w) do
    if w.period == rate.period and w.name == rate.kind then return w end
  end
end

local function window_count(w, rate)
  if w.kind == 2 then
    local _, _, count = edged_at(w, rate)
    return count
  end
  return sliding_count(w)
end

local function window_idle(w)
  if w.kind ~= 2 then return sliding_count(w) == 0 end
  local _, ends, count, next = unpack('<I7I7I4I4', w.s)
  if now < ends then return count == 0 end
  return next == 0 or now >= ends + longest(w.period, w.name)
end

-- The limit of a window that only counts.
local NO_LIMIT = 4294967295

-- When the key has a place for a window that it does not have; nil: now. At most 8 windows count at once. Nothing waits
-- for one that only counts.
local function place_at(k, rate)
  local counting, first = 0, nil
  if #k.w < 8 or rate.limit == NO_LIMIT then return nil end
  for _, w in ipairs(k.w) do
    if not window_idle(w) then
      counting = counting + 1
      local empties
      if w.kind == 2 then empties = window_ends(w) else empties = sliding_leaves(w, sliding_count(w) - 1) end
      first = min(first or empties, empties)
    end
  end
  if counting >= 8 then return first end
end

local function window_add(k, rate, at, cost)
  local w = window(k, rate)
  if not w then
    if #k.w >= 8 then
      local counting = {}
      for _, other in ipairs(k.w) do
        if not window_idle(other) then counting[#counting + 1] = other end
      end
      k.w = counting
      if #k.w >= 8 and rate.limit == NO_LIMIT then return end
    end
    w = { period = rate.period, name = rate.kind, kind = 0, s = '' }
    if rate.kind ~= '' then
      local s, e = edges(rate, now)
      w.kind, w.s = 2, pack('<I7I7I4I4', s, e, 0, 0)
    end
    k.w[#k.w + 1] = w
  end
  if w.kind == 2 then edged_add(w, rate, at, cost) else sliding_add(w, at, cost) end
end

local function window_remove(k, period, kind, at, as_of, cost)
  local w = window(k, { period = period, kind = kind })
  if not w then return end
  if w.kind == 2 then edged_remove(w, at, as_of, cost) else sliding_remove(w, at, cost) end
end

-- Spacing: GCRA in nanoseconds, kept as microseconds and the rest, which doubles hold exactly ---------

local function add(au, an, bu, bn)
  local n = an + bn
  if n >= 1000 then return au + bu + 1, n - 1000 end
  return au + bu, n
end

local function less(au, an, bu, bn)
  return au < bu or (au == bu and an < bn)
end

-- The last start leaves one step of debt behind, or its cost, and no more than a whole burst, whatever throttle it came
-- under.
local function pace_earned(k, t)
  if k.last == 0 then return k.eu, k.en end
  local mostu, mostn = add(k.last, 0, t.wholeu, t.wholen)
  if less(mostu, mostn, k.eu, k.en) then return mostu, mostn end
  local leastu, leastn = add(k.last, 0, t.stepu, t.stepn)
  if less(k.eu, k.en, leastu, leastn) then return leastu, leastn end
  return k.eu, k.en
end

-- The earliest start, in nanoseconds.
local function pace_earliest(u, n, t)
  n = n - t.aheadn
  u = u - t.aheadu
  if n < 0 then u, n = u - 1, n + 1000 end
  if u < 0 then return 0, 0 end
  return u, n
end

-- What is owed once all but the last cell of a cost are.
local function pace_before_last(u, n, t, at)
  if t.moreu + t.moren == 0 then return u, n end
  if less(u, n, at, 0) then u, n = at, 0 end
  return add(u, n, t.moreu, t.moren)
end

local function pace_next(k, t, from, pays)
  local eu, en = pace_earned(k, t)
  if pays > 1 then eu, en = pace_before_last(eu, en, t, from) end
  local u, n = pace_earliest(eu, en, t)
  if less(from, 0, u, n) then
    if n > 0 then return u + 1 end
    return u
  end
  return from
end

local function pace_after(k, t, at)
  local u, n = pace_earned(k, t)
  local lu, ln = pace_before_last(u, n, t, at)
  local ou, on = pace_earliest(lu, ln, t)
  if less(at, 0, ou, on) then
    lu, ln = add(u, n, t.moreu, t.moren)
  elseif less(lu, ln, at, 0) then
    lu, ln = at, 0
  end
  u, n = add(lu, ln, t.stepu, t.stepn)
  u, n = add(u, n, t.restu, t.restn)
  if less(u, n, k.eu, k.en) then u, n = k.eu, k.en end
  return u, n
end

-- One key asked with the numbers that come with a job ------------------------------------------------

local SHUT, CONCURRENCY, RATE, THROTTLE, LINE = 4, 1, 2, 3, 5
-- So long a job is first in line that needs more room than there is.
local IN_LINE = 5000000
-- A longer id stands in no line.
local LONGEST = 256

-- Frees the slots of a key whose rows are gone; set where rows are.
local free_lost

local function is_full(k, l, pays)
  return l.slots == 0 or (l.slots > 0 and k.active > max(l.slots - pays, 0))
end

local function has_line(k)
  return k.line and k.line.first ~= '' and k.line.till > now
end

local function is_first(k, job)
  return has_line(k) and k.line.first == job
end

-- Who is first in line is asked for again.
local function comes(line)
  if line.stood > 0 then line.gap, line.stood = now - line.stood, 0 end
end

-- When a start of one cost fits beside a later one that needs its room from `kept` on.
local function fits(k, rate, pays, later, kept)
  local at, period = now, rate.period
  if rate.kind == '' then at = max(kept, now) end
  pays = min(pays, rate.limit)
  if now + period + floor(period / 64) + 2 * EARLY <= at then pays = 0 end
  local limit = rate.limit - pays - min(later, rate.limit)
  if limit < 0 then return NEVER end
  local w = window(k, rate)
  if not w then return nil end
  local real, opens = now, nil
  now = at
  local count = window_count(w, rate)
  if count > limit then
    if w.kind == 2 then opens = edged_grows(w, rate, limit + 1) else opens = sliding_leaves(w, count - limit - 1) end
  end
  now = real
  return opens
end

-- The time of a start that pays so much, or nil and the refusal that lets go last.
local function ask(k, l, pays)
  local worst, opens
  local function refuse(strategy, limit, current, at)
    local slot = at == nil and 1 or 0
    at = at or -1
    opens = max(opens or -1, at)
    if not worst or slot > worst.slot or (slot == worst.slot and at > worst.own) then
      worst = { strategy = strategy, limit = limit, current = current, own = at, slot = slot }
    end
  end
  if k.shut and k.shut > now then refuse(SHUT, 0, 0, k.shut + EARLY) end
  if is_full(k, l, pays) then free_lost(k) end
  if is_full(k, l, pays) then refuse(CONCURRENCY, l.slots, k.active, nil) end
  for _, rate in ipairs(l.rates) do
    local w = window(k, rate)
    if w then
      local count = window_count(w, rate)
      local limit = rate.limit - min(pays, rate.limit) + 1
      if count >= limit then
        local at
        if w.kind == 2 then at = edged_grows(w, rate, limit) else at = sliding_leaves(w, count - limit) end
        if at then refuse(RATE, rate.limit, count, at + EARLY) end
      end
    else
      local at = place_at(k, rate)
      if at then refuse(RATE, rate.limit, 0, at + EARLY) end
    end
  end
  local at = now
  if l.spacing then
    at = pace_next(k, l.spacing, at, pays)
    if at > now + EARLY then refuse(THROTTLE, l.spacing.limit, l.spacing.limit, at) end
  end
  if worst then
    worst.at = opens
    return nil, worst
  end
  return at
end

-- The spacing of a job that costs so many cells.
local function spacing_of(t, cells)
  local more = t.stepn * (cells - 1)
  local moreu, moren = t.stepu * (cells - 1) + floor(more / 1000), more % 1000
  return setmetatable({ moreu = moreu, moren = moren }, { __index = t })
end

-- When there may be room for a start beside what the first in line needs, if there is none now.
local function is_kept(k, l, pays)
  local line, opens = k.line, nil
  local function later(at)
    if at then opens = max(opens or 0, at) end
  end
  if l.slots >= 0 and k.active + min(pays, l.slots) + min(line.pays, l.slots) > l.slots then later(NEVER) end
  local kept = line.stood > 0 and line.stood + line.gap or 0
  for _, rate in ipairs(l.rates) do
    local at = fits(k, rate, pays, line.pays, kept)
    later(at and min(at + EARLY, NEVER))
  end
  local t = l.spacing
  local burst = t and floor((t.aheadu + t.aheadn / 1000) / (t.stepu + t.stepn / 1000) + 0.5) + 1
  if t and burst > 1 then
    local cells = min(pays, burst) + min(line.pays, burst)
    local at = NEVER
    if cells <= burst then at = pace_next(k, spacing_of(t, cells), now, cells) end
    if at > now + EARLY then later(at) end
  end
  if not opens then return nil end
  local mine = t
  if t and burst > 1 then l.spacing = spacing_of(t, min(line.pays, burst)) end
  local _, first = ask(k, l, line.pays)
  l.spacing = mine
  if first and first.at >= 0 then opens = min(opens, first.at) end
  return min(opens, line.till + EARLY)
end

-- The time of a start of a job among others, or nil and why not.
local function ask_for(k, l, job, pays, done)
  local at, why = ask(k, l, pays)
  if not at or not has_line(k) or k.line.first == job or k.line.done > done then return at, why end
  local opens = is_kept(k, l, pays)
  if not opens then return at end
  return nil, { strategy = LINE, limit = 0, current = 0, own = opens, at = opens, slot = 0 }
end

local function stand_in_line(k, job, pays, done)
  local first = is_first(k, job)
  if #job > LONGEST or has_line(k) and k.line.done <= done and not first then return end
  local line = k.line or { gap = 0 }
  if first then comes(line) else line.first, line.stood = job, now end
  line.pays, line.done, line.till = pays, done, now + IN_LINE
  k.line, k.changed = line, true
end

-- Says whether it was first.
local function leave_line(k, job)
  if not is_first(k, job) then return false end
  comes(k.line)
  k.line.first, k.changed = '', true
  return true
end

-- Counts a start with all the limits that the job brings to a key, but its slots, and says how to undo it.
local function take(k, limits, at)
  local undo = { k.name, 1, at, now, k.eu, k.en, k.last }
  local eu, en, last = k.eu, k.en, k.last
  local completion, periods, seen = nil, {}, {}
  for _, l in ipairs(limits) do
    if l.spacing then
      local u, n = pace_after(k, l.spacing, at)
      if less(eu, en, u, n) then eu, en = u, n end
      last = max(last, k.last, at + l.spacing.restu + (l.spacing.restn > 0 and 1 or 0))
      if completion == nil then completion = true end
      completion = completion and l.spacing.completion
    end
  end
  k.eu, k.en, k.last = eu, en, last
  for _, l in ipairs(limits) do
    for _, rate in ipairs(l.rates) do
      local id = rate.period .. ' ' .. rate.kind
      if not seen[id] then
        seen[id] = true
        periods[#periods + 1] = rate.period
        periods[#periods + 1] = rate.kind
        window_add(k, rate, at, limits[1].pays)
      end
    end
  end
  undo[8], undo[9], undo[10] = k.eu, k.en, k.last
  undo[11], undo[12], undo[13] = completion and 1 or 0, periods, limits[1].pays
  return undo
end

-- What was paid for a start, or for a slot without one.
local function paid(undo)
  return undo[2] == 0 and undo[3] or undo[13]
end

-- A job has slots of a key, by its row of this time. One that has them already has no more.
local function occupy(k, job, pays, till)
  if redis.call('ZADD', holders(k.name), till, pays .. ' ' .. job) == 1 then k.active = min(k.active + pays, MOST) end
  k.till = max(k.till or 0, till)
end

local function vacate(k, job, undo)
  redis.call('ZREM', holders(k.name), paid(undo) .. ' ' .. job)
  k.active = max(k.active - paid(undo), 0)
end

-- What the windows of a key count of a start still.
local function counted(k, undo)
  return undo[4] > (k.cleared or 0) and paid(undo) or 0
end

local function undo_take(k, job, undo)
  vacate(k, job, undo)
  if undo[2] == 0 then return end
  local at, as_of = undo[3], undo[4]
  if k.eu == undo[8] and k.en == undo[9] and k.last == undo[10] then
    k.eu, k.en, k.last = undo[5], undo[6], undo[7]
  end
  local periods, pays = undo[12], counted(k, undo)
  if pays == 0 then return end
  for i = 1, #periods, 2 do
    window_remove(k, periods[i], periods[i + 1], at, as_of, pays)
  end
end

-- The rate of a key by its window.
local function rate_of(limits, name, period, kind)
  for _, l in ipairs(limits) do
    for _, rate in ipairs(l.rates) do
      if l.key == name and rate.period == period and rate.kind == kind then return rate end
    end
  end
end

-- Puts the windows right that count a start which used another amount than it paid, or whose use counts from now on. None
-- counts more of that than all of its limit.
local function settle(k, undo, limits, used)
  if undo[2] == 0 then return end
  local less, more, periods = counted(k, undo), used.amount, undo[12]
  if not used.counts_now then less, more = max(less - more, 0), max(more - less, 0) end
  for i = 1, #periods, 2 do
    if less > 0 then window_remove(k, periods[i], periods[i + 1], undo[3], undo[4], less) end
    local rate = more > 0 and rate_of(limits, k.name, periods[i], periods[i + 1])
    if rate then window_add(k, rate, now, min(more, rate.limit)) end
  end
end

-- Slots end, after a start that counted: the running time may count towards the next start's wait.
local function end_slot(k, job, undo)
  vacate(k, job, undo)
  if undo[2] == 1 and undo[11] == 1 then
    local took = max(now - undo[3], 0)
    k.eu, k.last = k.eu - took, max(k.last - took, 0)
    if k.eu < 0 then k.eu, k.en = 0, 0 end
  end
end

-- Reads the limits of a job from the arguments.
local function read_limits()
  local limits = {}
  for i = 1, num() do
    local l = { key = arg(), action = num(), slots = num(), rates = {}, pays = 1 }
    -- Few have a cost, or a share: what is said of those stands at the end.
    local has = floor(l.action / 4)
    l.action, l.by_calls = l.action % 4, has >= 4
    local limit = num()
    if limit > 0 then
      l.spacing = {
        limit = limit, completion = num() == 1, stepu = num(), stepn = num(),
        aheadu = num(), aheadn = num(), moreu = 0, moren = 0, restu = 0, restn = 0,
      }
      l.spacing.wholeu, l.spacing.wholen = add(l.spacing.stepu, l.spacing.stepn, l.spacing.aheadu, l.spacing.aheadn)
    end
    for j = 1, num() do
      local rate = { limit = num(), period = num(), kind = arg() }
      local edged = num()
      if edged > 0 then
        rate.edges = {}
        for e = 1, edged do rate.edges[e] = num() end
      end
      l.rates[j] = rate
    end
    if has % 2 == 1 then
      l.pays = num()
      local moreu, moren, restu, restn = num(), num(), num(), num()
      if l.spacing then
        l.spacing.moreu, l.spacing.moren, l.spacing.restu, l.spacing.restn = moreu, moren, restu, restn
      end
    end
    if has % 4 >= 2 then l.group, l.weight = arg(), num() end
    limits[i] = l
  end
  return limits
end

-- Each different key of which a start takes something, with all the limits that the job brings to it.
local function each_key(limits, step)
  local seen, taken = {}, {}
  for _, l in ipairs(limits) do
    if not seen[l.key] and not l.by_calls then
      seen[l.key] = true
      local same = {}
      for _, other in ipairs(limits) do
        if other.key == l.key then same[#same + 1] = other end
      end
      local k = key(l.key)
      taken[#taken + 1] = step(k, same)
      k.changed = true
    end
  end
  return taken
end

-- What the groups of a key were served, as src/limit/shares.rs counts it: a hash of its own, read once in a call.
local GROUPS, UNIT, OWED, AWAY, GRACE, ANEW = 1000, 1000, 2000000, 2000000, 50000, 4503599627370496

local function shares(k)
  if k.shares then return k.shares end
  local f, all = { turn = 0, a = 0, b = 0, turned = 0, asked = 0, g = {}, n = 0 }, redis.call('HGETALL', P .. 'f:' .. k.name)
  for i = 1, #all, 2 do
    local n = {}
    for number in string.gmatch(all[i + 1], '%d+') do n[#n + 1] = tonumber(number) end
    if all[i] == '' then
      f.turn, f.a, f.b, f.turned, f.asked = n[1], n[2], n[3], n[4], n[5]
    else
      f.g[sub(all[i], 2)], f.n = { served = n[1], done = n[2], comes = n[3], till = n[4] }, f.n + 1
    end
  end
  k.shares = f
  return f
end

local function put_share(k, group, g)
  redis.call('HSET', P .. 'f:' .. k.name, 'g' .. group, string.format('%.0f %.0f %.0f %.0f', g.served, g.done, g.comes, g.till))
end

local function put_group(k, group, g)
  local f = shares(k)
  if not f.g[group] and f.n >= GROUPS then
    for name, other in pairs(f.g) do
      if other.served <= f.b then
        redis.call('HDEL', P .. 'f:' .. k.name, 'g' .. name)
        f.g[name], f.n = nil, f.n - 1
      end
    end
    if f.n >= GROUPS then
      redis.call('DEL', P .. 'f:' .. k.name)
      f.g, f.n = {}, 0
    end
  end
  if not f.g[group] then f.n = f.n + 1 end
  f.g[group] = g
  put_share(k, group, g)
end

local function price(l)
  return max(floor(UNIT * l.pays / l.weight), 1)
end

local function begins(k, l, since)
  local f = shares(k)
  local from = min(f.b, max(f.turn - price(l), 0))
  local g = f.g[l.group]
  -- It has waited, wherever its jobs were.
  if g and g.till + AWAY > now then return max(g.served, from) end
  return max(g and g.served or 0, min(max(since, from), f.turn))
end

-- When a job that takes a share is done, in the virtual time of the key.
local function done_at(k, l, since)
  return begins(k, l, since) + price(l)
end

-- Those that somebody stays for and that are done before this one.
local function before(k, l, done)
  local f, others = shares(k), {}
  if f.asked + KEPT <= now then return nil end
  for name, g in pairs(f.g) do
    if name ~= l.group and g.till > now and g.done < done then others[name] = g end
  end
  return next(others) and others
end

-- One of them was asked for.
local function asked(k)
  local f = shares(k)
  if f.asked + KEPT <= now then
    redis.call('DEL', P .. 'f:' .. k.name)
    f = { turn = 0, a = 0, b = 0, turned = 0, asked = 0, g = {}, n = 0 }
    k.shares = f
  end
  if f.turned + OWED <= now then f.a, f.b, f.turned = f.turn, f.a, now end
  f.asked = now
  k.shared, k.changed = true, true
  return f
end

local function serve(k, l, since)
  local f = asked(k)
  local at = begins(k, l, since)
  local done = at + price(l)
  if at > ANEW then
    redis.call('DEL', P .. 'f:' .. k.name)
    f.turn, f.a, f.b, f.g, f.n, done = 0, 0, 0, {}, 0, 0
  end
  f.turn = max(f.turn, done)
  put_group(k, l.group, { served = done, done = 0, comes = 0, till = now })
end

local function save_all()
  for _, k in pairs(keys) do
    if k.changed then save(k) end
  end
end

-- Rows ---------------------------------------------------------------------------------------------

local function row(job)
  local f = redis.call('HMGET', P .. 'r:' .. job, 'gen', 'place', 'till', 'owner', 'lasts', 'lane', 'claim',
    'limits', 'taken', 'start')
  if not f[1] then return nil end
  return {
    job = job, gen = tonumber(f[1]), place = f[2], till = tonumber(f[3]), owner = f[4],
    lasts = tonumber(f[5]), lane = f[6], claim = f[7], limits = f[8], taken = f[9], start = tonumber(f[10]),
  }
end

-- Whether it is the lane of a call.
local function is_call(lane)
  return string.find(lane, '^%d+:>') ~= nil
end

-- The order in which rows are due.
local function sooner(a, b)
  if a.till ~= b.till then return a.till < b.till end
  return a.job < b.job
end

-- Whether the claim of a held job is sure to be its owner's still, who is gone: it was kept alive for 30 s at a
-- time at most, which is seen to when a third of it is over, by a second at the latest.
local function stands(r, seen)
  return seen + min(r.lasts, 30000000) * 2 / 3 - 1000000 > now
end

-- What a caller is told of a row.
local function tell(r)
  return { r.job, r.gen, r.place, r.till, r.owner, r.lasts, r.start or -1, r.claim, r.limits }
end

local function index(of, place)
  return P .. place .. ':' .. of
end

-- How many jobs of a queue each sidecar holds: by its name, the number and when it was told.
local function holds(queue)
  return P .. 'holds:' .. queue
end

-- A held row is worth nothing once the backend has its job back; one that is out is kept until somebody
-- has asked the backend.
local function put_row(r)
  local name = P .. 'r:' .. r.job
  redis.call('HSET', name, 'gen', r.gen, 'place', r.place, 'till', r.till, 'owner', r.owner,
    'lasts', r.lasts, 'lane', r.lane, 'claim', r.claim,
    'limits', r.limits, 'taken', r.taken or '', 'start', r.start or -1)
  redis.call('PEXPIRE', name, week_after(r.till))
  local set = index(r.owner, r.place)
  redis.call('ZADD', set, r.till, r.job)
  redis.call('PEXPIRE', set, WEEK)
end

local function drop_row(r)
  redis.call('DEL', P .. 'r:' .. r.job)
  redis.call('ZREM', index(r.owner, r.place), r.job)
end

local function taken_of(r)
  if not r.taken or r.taken == '' then return {} end
  return cmsgpack.unpack(r.taken)
end

local freed = {}

-- How long a row is overdue before its holder counts as lost: sidecars that live have put it back by then.
local LOST = 5000000

-- The slots of a job whose row is gone are free, if it has them still.
local function free_holder(k, holder)
  if redis.call('ZREM', holders(k.name), holder) == 0 then return end
  k.active, k.changed = max(k.active - string.match(holder, '^%d+'), 0), true
  freed[#freed + 1] = k.name
end

-- Frees the slots of jobs that have no rows any more, as their sidecars are gone too. Rows that no index names are put back.
function free_lost(k)
  for _, holder in ipairs(redis.call('ZRANGEBYSCORE', holders(k.name), '-inf', now - LOST, 'LIMIT', 0, 100)) do
    local r = row(string.match(holder, '^%d+ (.*)$'))
    if r and r.place == 'o' then
      put_row(r)
      redis.call('ZADD', holders(k.name), max(r.till, now), holder)
    else
      free_holder(k, holder)
    end
  end
end

-- The error that has a sidecar put its rows back: the index of those that are out names one that is gone.
local function lost_row(job)
  redis.pcall('ZREM', index(owner, 'o'), job)
  return redis.error_reply('WIPED a row is gone')
end

-- The slots of a row end, each by `step`.
local function each_slot(r, step)
  for _, undo in ipairs(taken_of(r)) do
    local k = key(undo[1])
    step(k, r.job, undo)
    k.changed = true
    freed[#freed + 1] = undo[1]
  end
end

-- The row goes, and its slots with it.
local function end_row(r)
  drop_row(r)
  each_slot(r, end_slot)
end

-- Tells the others, if there are any, by a message that begins with who says it.
local function publish(what)
  if redis.call('ZCARD', P .. 'live') > 1 then
    redis.call('PUBLISH', P .. 'wake', owner .. '\n' .. what)
  end
end

local function publish_freed()
  if #freed > 0 then publish('freed\n' .. table.concat(freed, '\n')) end
end

-- Whether a row ends because the backend gave its job out again. It stays if its start was granted after that: the
-- worker has the job already, and with it the slot.
local function gives_way(r, claim)
  if r.gen >= claim.gen then return false end
  local undo = taken_of(r)[1]
  -- It may have taken nothing.
  if not undo then return (r.start or -1) <= claim.made end
  return not (undo[2] == 1 and undo[4] > claim.made)
end

-- Whether the caller took the job over under this claim, and has not named it since.
local function is_taken_over(r, gen)
  return r.gen == gen and r.place == 'h' and r.owner == owner and r.till > 0
end
