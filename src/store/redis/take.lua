-- Asks for jobs in order until enough have started: all limits of a job, or none.

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

-- Whether a row ends because the backend gave its job out again. It stays if its start was granted after that: the
-- worker has the job already, and with it the slot.
local function gives_way(r, ask)
  if not r or r.gen >= ask.gen then return false end
  local undo = taken_of(r)[1]
  return not (undo and undo[2] == 1 and undo[4] > ask.made)
end

local asks, ended = {}, {}
for i = 1, num() do
  local ask = { job = arg(), gen = num(), made = num(), lasts = num(), lane = arg(), claim = arg(), blob = arg() }
  ask.limits = read_limits()
  asks[i] = ask
  local r = row(ask.job)
  -- The backend handed the job out again, so the older claim is over, and its slots are free for all that are asked.
  if gives_way(r, ask) then
    end_row(r)
    ended[#ended + 1] = tell(r)
    if r.owner ~= owner then publish('row\n' .. r.job) end
  end
end

local started, told = 0, { now, ended }
for i, ask in ipairs(asks) do
  local job, gen, lasts, lane, claim, blob = ask.job, ask.gen, ask.lasts, ask.lane, ask.claim, ask.blob
  local r, fresh = row(job), false
  -- An older claim of the same job that is asked for here too.
  if gives_way(r, ask) then
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
    verdict, out = start(r, ask.limits, blob, lasts)
  end
  if out then
    started = started + 1
    if fresh then r.place = 'o' end
    move_row(r, owner, 'o')
  elseif fresh then
    put_row(r)
  end
  told[i + 2] = verdict
end
save_all()
publish_freed()
return told
