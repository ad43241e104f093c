-- Asks for jobs in order until enough have started: all limits of a job, or none.

local not_after, want, takes = num(), num(), num()
if now > not_after then return late() end
if want > 0 and meta[2] and now < tonumber(meta[2]) then
  return redis.error_reply('SETTLING others have to announce themselves first')
end

-- By how much a start counts later. In which of two fixed windows it counts is decided now.
local function lead_of(limits)
  for _, l in ipairs(limits) do
    for _, rate in ipairs(l.rates) do
      if rate.kind ~= '' then return 0 end
    end
  end
  return takes
end

-- The refusal that lets go last, with the strongest action of all.
local function refused(limits)
  local lead = lead_of(limits)
  local at, worst, which, action, opens = now + lead, nil, 0, 0, -1
  for i, l in ipairs(limits) do
    local allowed, why = ask(key(l.key), l, lead)
    if allowed then
      at = max(at, allowed)
    else
      action = max(action, l.action)
      opens = max(opens, why.at)
      if not worst or why.slot > worst.slot or (why.slot == worst.slot and why.at > worst.at) then
        worst, which = why, i - 1
      end
    end
  end
  if not worst then return nil, at end
  return { 2, which, worst.strategy, worst.limit, worst.current, worst.at, worst.slot, opens, action }
end

local function start(r, limits, blob, lasts)
  local no, at = refused(limits)
  if no then return no, false end
  r.taken = cmsgpack.pack(each_key(limits, function(k, same) return take(k, same, at) end))
  for _, l in ipairs(limits) do
    local k = key(l.key)
    k.till = max(k.till or 0, at + lasts)
  end
  r.limits, r.lasts, r.till, r.start = blob, lasts, at + lasts, at
  return { 1, at }, true
end

local started, verdicts = 0, { now }
for i = 1, num() do
  local job, gen, lasts, lane, claim, blob = arg(), num(), num(), arg(), arg(), arg()
  local limits = read_limits()
  local r, fresh = row(job), false
  if r and r.gen < gen then
    end_row(r)
    r = nil
  end
  if not r then
    fresh = true
    r = { job = job, gen = gen, place = 'h', owner = owner, hidden = false, lasts = lasts, lane = lane, claim = claim, limits = blob }
    r.till = look_again(r)
  end
  local verdict, out
  if r.gen ~= gen or r.place ~= 'h' or r.hidden or r.owner ~= owner then
    verdict = { 0 }
  elseif started >= want then
    verdict = { 3 }
  else
    verdict, out = start(r, limits, blob, lasts)
  end
  if out then
    started = started + 1
    if fresh then r.place = 'o' end
    move_row(r, owner, 'o')
  elseif fresh then
    put_row(r)
  end
  verdicts[i + 1] = verdict
end
save_all()
publish_freed()
return verdicts
