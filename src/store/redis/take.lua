-- Asks for jobs in order until enough have started: all limits of a job, or none. What starts has a row from then on.

local not_after, want = num(), num()
if now > not_after then return late() end
if want > 0 and meta[2] and now < tonumber(meta[2]) then
  return redis.error_reply('SETTLING others have to announce themselves first')
end

-- The refusal that lets go last, with the strongest action of all.
local function refused(limits)
  local at, worst, which, action, opens = now, nil, 0, 0, -1
  for i, l in ipairs(limits) do
    local allowed, why = ask(key(l.key), l)
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

local function start(ask)
  local no, at = refused(ask.limits)
  if no then return no, false end
  local till = at + ask.lasts
  local taken = each_key(ask.limits, function(k, same) return take(k, same, at) end)
  for _, l in ipairs(ask.limits) do
    local k = key(l.key)
    k.till = max(k.till or 0, till)
  end
  put_row({ job = ask.job, gen = ask.gen, place = 'o', till = till, owner = owner, lasts = ask.lasts, lane = ask.lane,
    claim = ask.claim, limits = ask.blob, taken = cmsgpack.pack(taken), start = at })
  return { 1, at }, true
end

-- The jobs that have rows, so that none is read twice.
local asks, ended, has_row = {}, {}, {}
for i = 1, num() do
  local ask = { job = arg(), gen = num(), made = num(), lasts = num(), lane = arg(), claim = arg(), blob = arg() }
  ask.limits = read_limits()
  asks[i] = ask
  local r = row(ask.job)
  has_row[ask.job] = nil
  -- The backend handed the job out again, so the older claim is over, and its slots are free for all that are asked.
  if r and gives_way(r, ask) then
    end_row(r)
    ended[#ended + 1] = tell(r)
    if r.owner ~= owner then publish('row\n' .. r.job) end
  elseif r and is_taken_over(r, ask.gen) then
    -- It is the caller's alone from here on.
    drop_row(r)
  elseif r then
    has_row[ask.job] = true
  end
end

local started, told = 0, { now, ended }
for i, ask in ipairs(asks) do
  local verdict, out = { 0 }, false
  if not has_row[ask.job] then
    if started >= want then verdict = { 3 } else verdict, out = start(ask) end
  end
  if out then started, has_row[ask.job] = started + 1, true end
  told[i + 2] = verdict
end
save_all()
publish_freed()
return told
