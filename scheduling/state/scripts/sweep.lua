-- Ends what nobody renewed, <= 100 leases and <= 100 waiting entries, each with its ledger entry in the same step, and
-- closes the books of <= 100 evicted requests of which their gateway said no last word.
-- What waited is refunded whole; of what ran nobody can say how much it used, so its charge stands.
-- After an outage of Redis every lease looks expired though its gateway lives: then renewals come first.
-- epoch -> fenced, or {id, entry, id, entry, ...}
if fenced(ARGV[1]) then return 'fenced' end
local now = now_ms()
local out = {}

local m = call('HMGET', META, 'swept_at', 'sweep_from')
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

for _, id in ipairs(call('ZRANGEBYSCORE', WAITING, '-inf', now, 'LIMIT', 0, 100)) do
  local text = call('HGET', QUEUE, id)
  local x = parse(text)
  drop_waiting(id, x)
  settle(x.ent, x.charge, 0, now)
  ring('x', id)
  bury(id, text, 'gateway_lost')
end
for _, id in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 100)) do
  local text = call('HGET', HELD, id)
  local x = parse(text)
  drop_lease(id, x)
  ring_free(x.backend)
  bury(id, text, 'gateway_lost')
end
for _, id in ipairs(call('ZRANGEBYSCORE', LEAVING, '-inf', now, 'LIMIT', 0, 100)) do
  local text = call('HGET', EVICTED, id)
  call('HDEL', EVICTED, id)
  call('ZREM', LEAVING, id)
  bury(id, text, 'evicted')
end
return out
