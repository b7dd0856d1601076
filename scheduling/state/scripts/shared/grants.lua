-- From waiting to a lease.

-- Waiting -> lease. It ends when the waiting entry would have ended.
local function promote(id, x, backend, now, note, credit, used, point, tokens)
  local expiry = call('ZSCORE', WAITING, id) or now + LEASE_MS
  call('ZREM', WAITING, id)
  call('HDEL', QUEUE, id)
  call('ZREM', ORDER, place_of(id, x))
  x.backend, x.granted, x.note = backend, now, note
  charge_prefill(id, x, credit, used, now, point, tokens)
  keep_lease(id, x, expiry)
  count(x, 1, -1)
end

-- The notification of a grant; its last word is the prefill credit that it takes.
local function notice(id, x, backend, note, credit, pre)
  return id .. ' ' .. x.attempt .. ' ' .. backend .. ' ' .. note .. ' ' .. (credit > 0 and pre or 0)
end

-- Carries a decision out: waiting -> lease, if replica and entitlement have room and the gateway listens to the
-- notification (PUBLISH counts listeners). `tokens` of the prompt, up to `point`, are believed to be cached there.
-- -> ok | full | ent | away
local function grant_waiting(id, x, backend, cap, note, now, point, tokens)
  local offer = call('HGET', READY, backend)
  local o = offer and offer_of(offer, unpack(call('HMGET', CREDITS, backend, backend .. ' longest')))
    or offer_of('0 0')
  local b = 'b:' .. backend
  local e = 'e:' .. x.ent
  local v = call('HMGET', TOTALS, b .. ':run', b .. ':kv', e .. ':run', b .. ':pre', e .. ':base', b .. ':own')
  local credit = o.credit
  local owner = owns(x, tonumber(v[3]) or 0, tonumber(v[5]))
  local used = tonumber(v[4]) or 0
  if not has_slot(tonumber(v[1]) or 0, o.slots) then return 'full' end
  if not kv_fits(o.kv, tonumber(v[2]) or 0, x.kv, owner) or x.kv > o.longest then return 'full' end
  local pre = x.pre
  if credit > 0 then
    local c = point and cache_of(backend)
    tokens = c and uncounted_of(backend, point, math.min(tokens, pre - 1), c.most) or 0
    pre = pre - tokens
    local ahead = ahead_of(backend, used, now)
    if owner then ahead = owned_ahead(tonumber(v[6]) or 0, ahead) end
    if not prefill_fits(credit, ahead, pre) then return 'full' end
  end
  if (tonumber(v[3]) or 0) >= cap then return 'ent' end
  local told = notice(id, x, backend, note, credit, pre)
  if call('PUBLISH', 'qm:gw:' .. x.gateway, told) == 0 then return 'away' end
  promote(id, x, backend, now, note, credit, used, point, tokens)
  return 'ok'
end
