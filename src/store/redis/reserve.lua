-- Grants starts of a key ahead of their times, as KeyState::reserve does, and takes back those that were
-- granted earlier and not used.

local want, ahead = num(), num()
local limits = read_limits()
local l = limits[1]
local k = key(l.key)
if want > 0 and settling() then return too_soon() end

for _ = 1, num() do
  local at = num()
  for _, rate in ipairs(l.rates) do
    local w = window(k, rate)
    if w and w.kind ~= 2 then sliding_remove(w, at, 1) end
  end
end

local told = { now, {} }
local real, from, till = now, now, now + ahead
-- A window for which there is no place now gets none ahead.
local only_now = (k.shut and k.shut > now) or has_line(k)
for _, rate in ipairs(l.rates) do
  only_now = only_now or not window(k, rate) and place_at(k, rate)
end
for _ = 1, want do
  local at, why
  repeat
    now = from
    at, why = ask_for(k, l, '', 1, NEVER)
    now = real
    if not at then
      local next = why.at - EARLY
      if only_now or why.slot == 1 or next <= from or next > till then break end
      from = next
    end
  until at
  if not at then
    told[3] = { why.strategy, why.limit, why.current, why.at, why.slot }
    break
  end
  take(k, limits, at)
  table.insert(told[2], from)
  table.insert(told[2], at)
end
k.changed = true
save_all()
return told
