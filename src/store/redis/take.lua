-- Asks for jobs in order until enough have started: all limits of a job, or none. What starts has a row from then on.

local not_after, want = num(), num()
if now > not_after then return late() end
if want > 0 and meta[2] and now < tonumber(meta[2]) then
  return redis.error_reply('SETTLING others have to announce themselves first')
end

-- The refusal that lets go last, with the strongest action of all. The job pays its costs, or `pays` to each.
local function refused(ask_of, pays)
  local limits = ask_of.limits
  local at, worst, which, action, opens = now, nil, 0, 0, -1
  for i, l in ipairs(limits) do
    local allowed, why = ask(key(l.key), l, ask_of.job, pays or l.pays)
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

-- The refusal of a job with a cost: if it is for that alone, nothing else starts under its keys for a moment.
local function stand_in_line(ask, no)
  local sooner = refused(ask, 1)
  if sooner then return sooner end
  for _, l in ipairs(ask.limits) do
    if l.pays > 1 and #ask.job <= LONGEST then
      local k = key(l.key)
      k.first, k.alone, k.opens, k.changed = ask.job, now + IN_LINE, max(no[8], 0), true
    end
  end
  return no
end

-- The place of a job's share among its limits.
local function which_of(ask)
  for i, l in ipairs(ask.limits) do
    if l.key == ask.share.key then return i - 1 end
  end
end

local function start(ask)
  local ahead = ask.share and is_ahead(key(ask.share.key), ask.share)
  local no, at = refused(ask)
  if no then return ask.is_priced and not ahead and stand_in_line(ask, no) or no, false end
  -- There is room, and it is for another group.
  if ahead then
    local soon = now + AHEAD + EARLY
    return { 2, which_of(ask), LINE, 0, 0, soon, 0, soon, 0 }, false
  end
  local till = at + ask.lasts
  local taken = each_key(ask.limits, function(k, same)
    occupy(k, ask.job, same[1].pays, till)
    return take(k, same, at)
  end)
  for _, l in ipairs(ask.limits) do
    local k = key(l.key)
    if ask.is_priced and k.first == ask.job then
      k.first = nil
      freed[#freed + 1] = k.name
    end
  end
  put_row({ job = ask.job, gen = ask.gen, place = 'o', till = till, owner = owner, lasts = ask.lasts, lane = ask.lane,
    claim = ask.claim, limits = ask.blob, taken = cmsgpack.pack(taken), start = at })
  return { 1, at }, true
end

-- The jobs that have rows, so that none is read twice.
local asks, ended, has_row = {}, {}, {}
for i = 1, num() do
  local ask = { job = arg(), gen = num(), made = num(), more = num() == 1, lasts = num(), lane = arg(), claim = arg(), blob = arg() }
  ask.limits = read_limits()
  for _, l in ipairs(ask.limits) do
    ask.is_priced = ask.is_priced or l.pays > 1
    if l.group and not ask.share then ask.share = l end
  end
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

local started, groups = 0, {}
local told = { now, ended, groups }
for i, ask in ipairs(asks) do
  local verdict, out = { 0 }, false
  if not has_row[ask.job] then
    if started >= want then
      verdict = { 3 }
    else
      verdict, out = start(ask)
      if ask.share then
        local how = FULL
        if out then
          how = STARTED
        elseif verdict[3] == LINE then
          how = BEHIND
        elseif ask.limits[verdict[2] + 1].key ~= ask.share.key then
          how = PASSED_OVER
        end
        groups[#groups + 1] = served(key(ask.share.key), ask.share, how, ask.more)
      end
    end
  end
  if out then started, has_row[ask.job] = started + 1, true end
  told[i + 3] = verdict
end
save_all()
publish_freed()
return told
