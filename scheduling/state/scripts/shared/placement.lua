-- The choice of a replica, and of requests to evict for it.

local NONE = {}

-- The ready replicas and sums: of the pool, of one entitlement, and of each replica. One read of each hash; one more for
-- what is 0 while nobody waits.
-- {run, wait, bytes, able, run, wait and kv of the entitlement, its cap or false, due, its baseline or false, then run,
-- kv, work, prefill and owners' prefill of each replica}
local REPLICAS = 11
local SUMS = 5
local sums_read
local function survey(ent)
  local ready = ready_offers()
  local e, fields = 'e:' .. ent, sums_read
  if not fields then
    fields = {'run', 'wait', '', '', '', ''}
    local n = #fields
    for i = 1, #ready, 2 do
      local b = 'b:' .. ready[i]
      fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4], fields[n + 5] =
        b .. ':run', b .. ':kv', b .. ':work', b .. ':pre', b .. ':own'
      n = n + SUMS
    end
    sums_read = fields
  end
  fields[3], fields[4], fields[5], fields[6] = e .. ':run', e .. ':kv', e .. ':cap', e .. ':base'
  local sums = call('HMGET', TOTALS, unpack(fields))
  local wait = figure(sums[2])
  local w = wait ~= 0 and call('HMGET', TOTALS, 'bytes', 'able', 'due', e .. ':wait') or NONE
  local v = {
    figure(sums[1]), wait, figure(w[1]), figure(w[2]), figure(sums[3]), figure(w[4]), figure(sums[4]),
    sums[5] and tonumber(sums[5]) or false, figure(w[3]), sums[6] and tonumber(sums[6]) or false,
  }
  for i = 7, #fields do v[i + 4] = figure(sums[i]) end
  return ready, v
end

-- Whether a replica's prefill credit has room for a prompt beside those `ahead` (`has_credit` in Python): what is cached
-- there of it need not count.
local function fits_cached(name, credit, ahead, pre, record)
  if not record or not prefill_fits(credit, ahead, 1) then return false end
  local _, tokens = believed(name, pre, record)
  return tokens and prefill_fits(credit, ahead, pre - tokens)
end

local function needs_fit(name, credit, ahead, pre, record)
  return prefill_fits(credit, ahead, pre) or fits_cached(name, credit, ahead, pre, record)
end

-- Whether a prompt chosen for a replica would go beside a long one (`computes_long` in Python): an owner's, whose
-- replica has no room for it otherwise. It waits for the leader, who may interrupt that prefill.
local function computes_long(name, credit, used, pre)
  local ahead = ahead_of(name, used, now_ms())
  if prefill_fits(credit, ahead, pre) or ahead < LEAST_CREDITS * credit then return false end
  return call('HEXISTS', CREDITS, name .. ' resumes') == 1
end

local function beside_long(name, credit, used, pre)
  return credit > 0 and used >= LEAST_CREDITS * credit and computes_long(name, credit, used, pre)
end

local function words_of(text)
  if text == '' then return NONE end
  local words = {}
  for word in string.gmatch(text, '%S+') do words[word] = true end
  return words
end

-- The replica of a list that scheduling/core/placement/rule.py names (`place`), by its number in `ready`; nil for none. `p`:
-- the points of its prompt, `worth` what they are worth by replica; without points by outstanding work alone. Ties:
-- fewest running, then name.
local function place(list, ready, v, loads, p, worth)
  if #list < 2 then return list[1] end
  local least, sum = math.huge, 0
  for _, i in ipairs(list) do
    least, sum = math.min(least, loads[i]), sum + loads[i]
  end
  local most = p and least + math.max(p.skew, sum / #list) or math.huge
  local best, best_run, best_score
  for _, i in ipairs(list) do
    local name = ready[i]
    local run, score = v[REPLICAS + (i - 1) / 2 * SUMS], loads[i] - (worth[name] or 0)
    if loads[i] <= most then
      local better = not best or score < best_score or (score == best_score and run < best_run)
      if not better and score == best_score and run == best_run then
        if p then
          better = redis.sha1hex(p.names[1] .. name) < redis.sha1hex(p.names[1] .. ready[best])
        else
          better = name < ready[best]
        end
      end
      if better then best, best_run, best_score = i, run, score end
    end
  end
  return best
end

-- How many of its tokens the engine of a replica is believed to find.
local function found_at(name, p, pre)
  local c = cache_of(name)
  local _, _, expected = known_at(p, name)
  return c and expected and math.min(pre, math.floor(expected * c.trust / 1000)) or 0
end

-- The replica that has a prompt of `pre` tokens cached, of those `serving` it, where none of those that `fit` is as good
-- (scheduling/core/placement/cache_wait.py), and the one of these that `place` names.
local function cached_elsewhere(serving, fit, ready, v, loads, p, worth, pre)
  local best = place(fit, ready, v, loads, p, worth)
  local own = place(serving, ready, v, loads, p, worth)
  for _, i in ipairs(fit) do
    if i == own then return nil, best end
  end
  local again = found_at(ready[own], p, pre) - found_at(ready[best], p, pre)
  return again >= LEAST_AGAIN and own or nil, best
end

local function without(list, left_out)
  local kept = {}
  for _, i in ipairs(list) do
    if not left_out[i] then kept[#kept + 1] = i end
  end
  return kept
end

-- Of those that have room only beside others' prompts, the ones where the fewest tokens are `ahead`.
local function fewest(list, ahead)
  local least, kept = math.huge, {}
  for _, i in ipairs(list) do least = math.min(least, ahead[i]) end
  for _, i in ipairs(list) do
    if ahead[i] == least then kept[#kept + 1] = i end
  end
  return kept
end

-- Chooses a replica with room by `place`. -> that replica, its index in the survey, the slots of all ready replicas, how
-- many are free, whether one has a slot and KV cache, the prefill credit of the chosen one, whether one that lacks the
-- adapter has a slot and KV cache, and whether the request may wait for another one that has its prompt cached, or is fast
-- enough where this one is not (`at_pace` and `waits_for_replica` in Python; `pace`: 0 or nil: any is).
-- `exclude`: where it must not run, separated by spaces. An owner goes beside others' prompts where its prompt is cached,
-- or where no replica has room without that, there where the fewest of their tokens are before its own. `homes`: who has
-- the adapter (shared/adapters.lua); nil: there is none.
local function choose(ready, v, kv, exclude, pre, record, owner, homes, pace)
  local fit, beside, ahead_at, credits, loads, serving = {}, {}, {}, {}, {}, {}
  local slots, free, roomy, cold, slow = 0, 0, false, false, false
  local out = exclude == '' and NONE or words_of(exclude)
  for i = 1, #ready, 2 do
    local name, o = ready[i], ready[i + 1]
    local j = REPLICAS + (i - 1) / 2 * SUMS
    local run, credit = v[j], o.credit
    local fits = has_slot(run, o.slots)
    slots = slots + o.slots
    if fits then free = free + o.slots - run end
    local may = kv <= o.longest and not out[name]
    local has = may and serves(homes, name)
    if has and kv <= o.kv then
      serving[#serving + 1], loads[i] = i, v[j + 2] * 1000 / o.speed
      if pace and 0 < pace and pace < o.token then
        slow = slow or {}
        slow[i] = true
      end
    end
    fits = fits and may and kv_fits(o.kv, v[j + 1], kv, owner)
    if fits and not has then fits, cold = false, true end
    roomy = roomy or fits
    if fits and kv <= o.kv then
      local held, over = v[j + 3], v[j + 1] + kv > o.kv
      local ahead = 0  -- of what is held never more counts than all of it
      if over or not prefill_fits(credit, held, pre) then
        ahead = credit > 0 and ahead_of(name, held, now_ms()) or held
      end
      credits[i] = credit
      if not over and needs_fit(name, credit, ahead, pre, record) then
        fit[#fit + 1] = i
      elseif owner and needs_fit(name, credit, owned_ahead(v[j + 4], ahead), pre, record) then
        beside[#beside + 1], ahead_at[i] = i, ahead
      end
    end
  end
  local waits = false
  if slow then
    local keeping, fast, aside = without(serving, slow), without(fit, slow), without(beside, slow)
    if #fast + #aside > 0 then
      serving, fit, beside = keeping, fast, aside
    else
      waits = #keeping > 0
    end
  end
  if #fit == 0 then fit = fewest(beside, ahead_at) end
  local p = #fit > 0 and #serving > 1 and record and points_of(record)
  local worth = p and worth_of(p) or NONE  -- to run there, in tokens of outstanding work
  local own, best
  if p and #fit < #serving then
    own, best = cached_elsewhere(serving, fit, ready, v, loads, p, worth, pre)
  else
    best = place(fit, ready, v, loads, p, worth)
  end
  if not best then return false, 0, slots, free, roomy, 0, cold, false end
  if own and ahead_at[own] then own, best = nil, own end
  return ready[best], REPLICAS + (best - 1) / 2 * SUMS, slots, free, roomy, credits[best], cold, waits or own ~= nil
end

-- Makes room on one ready replica by ending preemptible leases, newest first; -> that replica, its prefill credit and
-- what of it is used then, or false where all of the newest hundred would not do. An evicted request is out of the way
-- at once: its slot and KV are free, its gateway is told, and it has ended. Only its accounts stay open until the
-- gateway says how much it had used (`finish`), or is found dead (`sweep`).
local function make_room(ready, v, kv, exclude, pre, now, owner, homes)
  local ids = call('ZREVRANGE', PREEMPTIBLE, 0, 99)
  if #ids == 0 then return false end
  local texts = call('HMGET', HELD, unpack(ids))
  local place, out = {}, words_of(exclude)
  for i = 1, #ready, 2 do
    local o = ready[i + 1]
    if not out[ready[i]] and kv <= o.longest and serves(homes, ready[i]) then
      local j = REPLICAS + (i - 1) / 2 * SUMS
      local ahead = o.credit > 0 and ahead_of(ready[i], v[j + 3], now) or 0
      place[ready[i]] = {slots = o.slots, kv = o.kv, credit = o.credit, run = v[j], used = v[j + 1], pre = v[j + 3],
        own = v[j + 4], ahead = ahead, out = {}}
    end
  end
  for i = 1, #ids do
    local x = texts[i] and parse(texts[i])
    local b = x and place[x.backend]
    if b then
      b.out[#b.out + 1] = {ids[i], x}
      b.run, b.used, b.pre = b.run - sequences_of(x.record), b.used - x.kv, b.pre - x.pre
      b.ahead = math.max(0, b.ahead - x.pre)
      local ahead = owner and owned_ahead(b.own, b.ahead) or b.ahead
      if has_slot(b.run, b.slots) and kv_fits(b.kv, b.used, kv, owner) and prefill_fits(b.credit, ahead, pre) then
        for _, one in ipairs(b.out) do
          local id, y = one[1], one[2]
          drop_lease(id, y)
          call('HSET', EVICTED, id, compose(y))
          call('ZADD', LEAVING, now + LEASE_MS, id)
          call('SET', P .. 'ended:' .. id, 'evicted')  -- until its accounts are closed
          call('PUBLISH', 'qm:gw:' .. y.gateway, id .. ' ' .. y.attempt .. ' - evicted')
        end
        return x.backend, b.credit, b.pre
      end
    end
  end
  return false
end
