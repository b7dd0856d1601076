-- Ends what was not renewed, <= 100 leases and <= 100 waiting entries, each with its ledger entry in the same step, and
-- settles <= 100 evicted or superseded requests whose gateways have not reported their use.
-- A request that never ran is refunded; what one that ran used is not known, so its charge stands.
-- After an outage of Redis all leases look expired although their gateways live: renewals come first then.
-- `passed`: ms since the leader's last sweep, by its monotonic clock; -1: this is its first.
-- epoch passed_ms -> fenced, or {id, entry, id, entry, ...}
if fenced(ARGV[1]) then return 'fenced' end
even_when_full()
local m = call('HMGET', META, 'swept_at', 'sweep_from', 'leader_until')
now_ms()
local doubt = doubted()
believe(tonumber(ARGV[2]), tonumber(m[1]))
local now = now_ms()
if doubt > 0 and (tonumber(m[3]) or 0) > now + LEADER_MS then call('HSET', META, 'leader_until', now + LEADER_MS) end
local out = {}

local from = tonumber(m[2]) or 0
call('HSET', META, 'swept_at', now)
if m[1] and now - tonumber(m[1]) > SWEEP_GAP_MS then
  from = now + REBUILD_MS
  call('HSET', META, 'sweep_from', from)
end
if now < from then return out end

local function bury(id, text, reason)
  mark_ended(id, reason)
  call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'swept', text, 'at', now, 'as', reason)
  out[#out + 1] = id
  out[#out + 1] = text
end

-- What never ran pays nothing.
local function refund(x)
  settle(x.ent, x.charge, 0, now)
  settle_limits(x, 0, false, now)
end

-- What cannot be read ends with what can be told of it; an expiry without entry is removed.
local function entry(entries, expiries, id)
  local text = call('HGET', entries, id)
  local x = text and parse(text)
  if not text then
    call('ZREM', expiries, id)
  elseif not x then
    drop_unread(id)
    mark_ended(id, 'gateway_lost')
    call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'unread', text, 'of', id, 'at', now)
    out[#out + 1] = id
    out[#out + 1] = ''
  end
  return x, text
end

for _, id in ipairs(call('ZRANGEBYSCORE', WAITING, '-inf', now, 'LIMIT', 0, 100)) do
  local x, text = entry(QUEUE, WAITING, id)
  if x then
    drop_waiting(id, x)
    refund(x)
    bury(id, text, 'gateway_lost')
  end
  notify('x', id)
end
for _, id in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 100)) do
  local x, text = entry(HELD, LEASES, id)
  if x then
    drop_lease(id, x)
    notify_free(x.backend)
    bury(id, text, 'gateway_lost')
  end
end
for _, id in ipairs(call('ZRANGEBYSCORE', LEAVING, '-inf', now, 'LIMIT', 0, 100)) do
  local x, text = entry(EVICTED, LEAVING, id)
  if x then
    call('HDEL', EVICTED, id)
    call('ZREM', LEAVING, id)
    if x.granted == 0 then refund(x) end
    bury(id, text, ended(id) or 'evicted')
  end
end
return out
