-- Asks for jobs in order until enough have started: all limits of a job, or none. What starts has a row from then on.

local not_after, want = num(), num()
if now > not_after then return late() end
if want > 0 and settling() then return too_soon() end

-- The refusal that lets go last, with the strongest action of all.
local function refused(ask)
  local at, worst, which, action, opens = now, nil, 0, 0, -1
  for i, l in ipairs(ask.limits) do
    local k = key(l.key)
    local allowed, why = ask_for(k, l, ask.job, l.pays, l.group and done_at(k, l, ask.since) or NEVER)
    if allowed then
      at = max(at, allowed)
    else
      if why.strategy ~= LINE then action = max(action, l.action) end
      opens = max(opens, why.at)
      if not worst or why.slot > worst.slot or (why.slot == worst.slot and why.at > worst.at) then
        worst, which = why, i - 1
      end
    end
  end
  if not worst then return nil, at end
  return { 2, which, worst.strategy, worst.limit, worst.current, worst.at, worst.slot, opens, action }
end

-- The limit that refused a job for longest, if it would not refuse one that costs less for as long.
local function refused_for_cost(job, no)
  local l = job.limits[no[2] + 1]
  if no[9] > 0 or l.pays <= 1 or no[3] == LINE or no[3] == SHUT then return nil end
  -- Nobody knows when slots end: perhaps sooner than another key opens.
  if no[7] == 1 and no[8] > now + IN_LINE then return nil end
  local at, one = ask(key(l.key), l, 1)
  -- All slots are taken, and of those that end others would take each.
  if at or no[3] == CONCURRENCY and no[4] > 0 then return l end
  if no[7] > one.slot or (no[7] == one.slot and no[6] > one.at) then return l end
end

-- Those behind a job that is not first in line any more are told.
local function leave_lines(ask)
  for _, l in ipairs(ask.limits) do
    if leave_line(key(l.key), ask.job) then freed[#freed + 1] = l.key end
  end
end

-- Whether somebody is there still when it may start. Jobs are asked for again, and calls that do not wait so long are not.
local function waits_for(ask, at)
  return not is_call(ask.lane) or ask.stays > now and at <= ask.stays
end

-- A refused job: what it needs is kept for it, or it is first in line nowhere.
local function stand(ask, no)
  local by = waits_for(ask, no[8]) and refused_for_cost(ask, no)
  if not by then return leave_lines(ask) end
  local seen = {}
  for _, l in ipairs(ask.limits) do
    local k = key(l.key)
    if not seen[l.key] and (l.key == by.key or is_first(k, ask.job)) then
      stand_in_line(k, ask.job, l.pays, l.group and done_at(k, l, ask.since) or 0)
    end
    seen[l.key] = true
  end
end

-- The place of a job's share among its limits.
local function which_of(ask)
  for i, l in ipairs(ask.limits) do
    if l.key == ask.share.key then return i - 1 end
  end
end

-- The groups that a job lets go first.
local function ahead_of(ask)
  if not ask.share then return nil end
  local k, l = key(ask.share.key), ask.share
  return before(k, l, done_at(k, l, ask.since))
end

local function hold_up(ask, others)
  local k, soon = key(ask.share.key), now + GRACE + EARLY
  asked(k)
  for name, g in pairs(others) do
    local till = min(g.till, max(g.comes, now) + GRACE)
    -- Mostly the one before in this call has written it.
    if till < g.till then
      g.till = till
      put_share(k, name, g)
    end
  end
  return { 2, which_of(ask), LINE, 0, 0, soon, 0, soon, 0 }, false
end

local function start(ask)
  local no, at = refused(ask)
  if no then
    if ask.is_priced then stand(ask, no) end
    return no, false
  end
  local others = ahead_of(ask)
  if others then return hold_up(ask, others) end
  local till = at + ask.lasts
  local taken = each_key(ask.limits, function(k, same)
    occupy(k, ask.job, same[1].pays, till)
    return take(k, same, at)
  end)
  if ask.share then serve(key(ask.share.key), ask.share, ask.since) end
  if ask.is_priced then leave_lines(ask) end
  put_row({ job = ask.job, gen = ask.gen, place = 'o', till = till, owner = owner, lasts = ask.lasts, lane = ask.lane,
    claim = ask.claim, limits = ask.blob, taken = cmsgpack.pack(taken), start = at })
  return { 1, at }, true
end

-- The claims of the jobs that have rows, so that none is read twice.
local asks, ended, claim_of = {}, {}, {}
for i = 1, num() do
  local ask = { job = arg(), gen = num(), made = num(), since = num(), stays = num(), followed = num(), lasts = num(), lane = arg(), claim = arg(), blob = arg() }
  ask.limits = read_limits()
  for _, l in ipairs(ask.limits) do
    ask.is_priced = ask.is_priced or l.pays > 1
    if l.group and not ask.share then ask.share = l end
  end
  asks[i] = ask
  local r = row(ask.job)
  claim_of[ask.job] = nil
  -- The backend handed the job out again, so the older claim is over, and its slots are free for all that are asked.
  if r and gives_way(r, ask) then
    end_row(r)
    ended[#ended + 1] = tell(r)
    if r.owner ~= owner then publish('row\n' .. r.job) end
  elseif r and is_taken_over(r, ask.gen) then
    -- It is the caller's alone from here on.
    drop_row(r)
  elseif r then
    claim_of[ask.job] = r.gen
  end
end

-- What is told of the group of an asked job. Where the key that it shares refused the job, it waits, and others let it go
-- first as long as somebody stays for it.
local function tell_share(ask, verdict, stays)
  local k, l = key(ask.share.key), ask.share
  local f = asked(k)
  local g = f.g[l.group]
  local sum, comes, till = g and g.served or f.turn, 0, now
  if verdict[1] == 2 and ask.limits[verdict[2] + 1].key ~= l.key then
    sum = max(sum, f.turn)
  else
    -- Where it has started, the next of its group waits.
    if verdict[1] == 2 then sum = begins(k, l, ask.since) end
    local at = verdict[1] == 2 and verdict[8] or -1
    comes = max(at - EARLY, 0)
    if at <= stays then till = max(stays, now) end
  end
  if verdict[1] == 2 or till > now then
    put_group(k, l.group, { served = sum, done = sum + price(l), comes = comes, till = till })
  end
  return { k.name, l.group, sum, f.turn }
end

local started, groups = 0, {}
local told = { now, ended, groups }
for i, ask in ipairs(asks) do
  local known, verdict, out = claim_of[ask.job], { 3 }, false
  if known then
    verdict = { known > ask.gen and 4 or 0 }
  elseif started < want then
    verdict, out = start(ask)
  end
  if out then started, claim_of[ask.job] = started + 1, ask.gen end
  told[i + 3] = verdict
end
for i, ask in ipairs(asks) do
  local verdict = told[i + 3]
  -- A FETCH that has got something goes with it.
  if ask.share and (verdict[1] == 1 or verdict[1] == 2) then
    groups[#groups + 1] = tell_share(ask, verdict, started == 0 and ask.stays or ask.followed)
  end
end
save_all()
publish_freed()
return told
