-- Ends what nobody renewed, <= 100 leases and <= 100 waiting entries, each with its ledger entry in the same step.
-- What waited is refunded whole; of what ran nobody can say how much it used, so its charge stands.
-- epoch -> fenced, or {id, entry, id, entry, ...}
if fenced(ARGV[1]) then return 'fenced' end
local now = now_ms()
local out = {}

local function bury(id, text)
  mark_ended(id, 'gateway_lost')
  call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'swept', text, 'at', now)
  out[#out + 1] = id
  out[#out + 1] = text
end

for _, id in ipairs(call('ZRANGEBYSCORE', WAITING, '-inf', now, 'LIMIT', 0, 100)) do
  local text = call('HGET', QUEUE, id)
  local x = parse(text)
  drop_waiting(id, x)
  settle(x.ent, x.charge, 0, now)
  ring('x', id)
  bury(id, text)
end
for _, id in ipairs(call('ZRANGEBYSCORE', LEASES, '-inf', now, 'LIMIT', 0, 100)) do
  local text = call('HGET', HELD, id)
  local x = parse(text)
  drop_lease(id, x)
  ring_free(x.backend)
  bury(id, text)
end
return out
