-- Grants starts of a key ahead of their times, as KeyState::reserve does, and takes back those that were
-- granted earlier and not used.

local want, ahead = num(), num()
local limits = read_limits()
local l = limits[1]
local k = key(l.key)
if want > 0 and meta[2] and now < tonumber(meta[2]) then
  return redis.error_reply('SETTLING others have to announce themselves first')
end

-- A start at that time is counted no more. Those of one sub-window leave together: any of them will do.
local function release(w, at)
  if w.kind == 0 then
    for n = #w.s / 7, 1, -1 do
      local start = unpack('<I7', w.s, n * 7 - 6)
      if start == at then w.s = sub(w.s, 1, n * 7 - 7) .. sub(w.s, n * 7 + 1) end
      if start <= at then return end
    end
    return
  elseif w.kind == 2 then
    return
  end
  local r = ring_open(w)
  local n = floor(at / r.width)
  if n < r.low or n - r.low >= SLOTS then return end
  local count = ring_at(w, n)
  if count > 0 then
    ring_put(w, n, count - 1)
    r.total = r.total - 1
    ring_close(w, r)
  end
end

for _ = 1, num() do
  local at = num()
  for _, rate in ipairs(l.rates) do
    local w = window(k, rate)
    if w then release(w, at) end
  end
end

local told = { now, {} }
local real, from, till = now, now, now + ahead
local shut = k.shut and k.shut.till > now
for _ = 1, want do
  local at, why
  repeat
    now = from
    at, why = ask(k, l)
    now = real
    if not at then
      local next = why.at - EARLY
      if shut or why.slot == 1 or next <= from or next > till then break end
      from = next
    end
  until at
  if not at then
    told[3] = { why.strategy, why.limit, why.current, why.at, why.slot }
    break
  end
  take(k, limits, at)
  k.active = k.active - 1
  table.insert(told[2], from)
  table.insert(told[2], at)
end
k.changed = true
save_all()
return told
