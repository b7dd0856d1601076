-- Whether a leader decides, and hand-outs while none does.

-- Whether somebody leads: its time is not over, and where its process was heard to listen it still does. What was
-- killed is seen at once by that, what hangs by its time. -> whether somebody leads, and has begun to decide
local function led(now)
  local m = call('HMGET', META, 'leader', 'leader_until', 'leader_listens', 'epoch', 'decides')
  if not m[1] or (tonumber(m[2]) or 0) <= now then return false, false end
  local lives = not m[3] or call('PUBSUB', 'NUMSUB', 'qm:leader:' .. m[1])[2] > 0
  return lives, lives and m[4] == m[5]
end

local BY_NOBODY = 'leaderless|nobody%20leads%20the%20pool:%20by%20class,%20then%20arrival'

-- While no leader decides, scripts that free a slot or hear of a waiting request hand out free slots (`finish`, `admit`,
-- `renew`, `requeue`): to owners within their reserved capacity first, then within a baseline, then within r_e, then to
-- those that may burst; in order of arrival within each. -> whether no leader decides
-- The work of a call is bounded: in the number of grants, of entitlements (heaviest first), and of requests of each that
-- cannot be granted. Those do not stop others: an entitlement at its cap is skipped, a request whose gateway does not
-- listen leaves the order until it is renewed, and if no request is granted, the next entitlements are tried. Nothing is
-- handed out while leases may have to be announced again.
local function hand_out(now)
  local _, decides = led(now)
  if decides then return false end
  local m = call('HMGET', META, 'rebuild_until', 'headroom', 'order_from')
  if (tonumber(m[1]) or 0) > now then return true end
  local headroom, from, known = tonumber(m[2]) or 0, tonumber(m[3]) or 0, call('ZCARD', WEIGHTS)
  if from >= known then from = 0 end

  -- The entitlements that may get a slot, each with its first waiting requests.
  local lines, fields = {}, {}
  local names = call('ZREVRANGE', WEIGHTS, from, from + ENTITLEMENTS_AT_ONCE - 1)
  for i, ent in ipairs(names) do
    local e, n = 'e:' .. ent, 4 * i
    fields[n - 3], fields[n - 2], fields[n - 1], fields[n] = e .. ':wait', e .. ':run', e .. ':cap', e .. ':base'
  end
  local t = #names > 0 and call('HMGET', TOTALS, unpack(fields)) or {}
  for i, ent in ipairs(names) do
    local n = 4 * i
    local run, cap = tonumber(t[n - 2]) or 0, tonumber(t[n - 1])
    if able_of(tonumber(t[n - 3]) or 0, run, cap) > 0 then
      local first = call('ZRANGEBYLEX', ORDER, '[' .. ent .. ' ', '(' .. ent .. '!', 'LIMIT', 0,
        GRANTS_AT_ONCE + TRIED_OF_EACH)
      lines[#lines + 1] = {run = run, cap = cap, base = tonumber(t[n]), first = first, at = 1, failed = 0}
    end
  end

  -- Its next request; what does not wait or cannot be read leaves the order (`sweep` ends it).
  local function look(line)
    while not line.x and line.at <= #line.first and line.failed < TRIED_OF_EACH do
      local member = line.first[line.at]
      local seq, id = string.match(member, '^%S+ (%d+) (.*)$')
      local text = id and call('HGET', QUEUE, id)
      line.x, line.id, line.seq, line.member = text and parse(text), id, tonumber(seq), member
      if not line.x then
        call('ZREM', ORDER, member)
        line.at, line.failed = line.at + 1, line.failed + 1
      end
    end
    return line.x
  end

  -- `spared`: the free slots are kept for baselines.
  local function band_of(line, spared)
    if line.base and line.run < line.base then
      return owns(line.x, line.run, line.base) and 0 or 1
    end
    if spared then return nil end
    if not line.cap then return 3 end
    return line.run < line.cap and 2 or nil
  end

  local function next_line(spared)
    local best, best_band
    for _, line in ipairs(lines) do
      local band = look(line) and band_of(line, spared)
      if band and (not best or band < best_band or (band == best_band and line.seq < best.seq)) then
        best, best_band = line, band
      end
    end
    return best
  end

  local granted, idle = 0, false
  local ready, v = survey('-')
  while granted < GRANTS_AT_ONCE do
    local _, _, _, free = choose(ready, v, 0, '', 0)
    local line = free > 0 and next_line(free <= headroom)
    if not line then
      idle = free > 0
      break
    end
    local x, said = line.x, 'full'
    local exclude = #ready > 2 and string.match(x.record, '"exclude_backend":"([^"]+)"') or ''
    local backend, _, _, _, roomy = choose(ready, v, x.kv, exclude, x.pre, x.record,
      owns(x, line.run, line.base), homes_of(x.record))
    if (tonumber(call('ZSCORE', WAITING, line.id)) or 0) <= now then
      said = 'away'  -- it is not renewed
    elseif backend then
      said = grant_waiting(line.id, x, backend, line.cap or math.huge, BY_NOBODY, now,
        believed(backend, x.pre, x.record))
    elseif roomy then
      break  -- it lacks only prefill credit, which comes back within moments: nobody passes it
    end
    if said == 'ok' then
      notify('x', line.id)  -- a leader that comes back has nothing to decide about it
      line.run, granted = line.run + sequences_of(x.record), granted + 1
      ready, v = survey('-')
    else
      line.failed = line.failed + 1
      if said == 'away' then call('ZREM', ORDER, line.member) end
    end
    line.at, line.x = line.at + 1, nil
  end

  -- Requests that wait beside free slots that they cannot use hold up no arrival.
  local stuck = idle and tonumber(call('HGET', TOTALS, 'able')) or 0
  if stuck == 0 then call('HDEL', META, 'stuck') else call('HSET', META, 'stuck', stuck) end
  if idle and granted == 0 and known > ENTITLEMENTS_AT_ONCE then
    call('HSET', META, 'order_from', from + ENTITLEMENTS_AT_ONCE)
  elseif m[3] then
    call('HDEL', META, 'order_from')
  end
  return true
end

-- A slot became free, which matters only while requests wait.
local function offer_free(backend, now)
  if call('HGET', TOTALS, 'wait') then
    notify('f', backend)
    hand_out(now)
  end
end
