-- Ledger entries of requests that never had state, each id once. A request in flight is left to `finish`, and named.
-- `wanted`: the unmet demand of a refused request [tokens], or 0. `used`: tokens of one that ran, and is sent again
-- because Redis may have lost its record.
-- What `sweep` gave up is put right, as by `finish`.
-- <= 100 x (id reason record ent wanted used) -> {id, id, ...} in flight
local in_flight = {}
for i = 1, #ARGV, 6 do
  local id, before = ARGV[i], ended(ARGV[i])
  if call('HEXISTS', HELD, id) == 1 or call('HEXISTS', QUEUE, id) == 1 then
    in_flight[#in_flight + 1] = id
  elseif before == 'gateway_lost' and ARGV[i + 1] ~= before then
    mark_ended(id, ARGV[i + 1])
    call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'r', ARGV[i + 2], 'after', before)
  elseif not before then
    mark_ended(id, ARGV[i + 1])
    call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'r', ARGV[i + 2])
    if ARGV[i + 4] ~= '0' then
      call('HINCRBY', METER, ARGV[i + 3] .. ':refused', ARGV[i + 4])
      call('HINCRBY', METER, ARGV[i + 3] .. ':refusals', 1)
    end
    settle_forgotten(ARGV[i + 3], tokens_of(ARGV[i + 5]) or 0, now_ms())
  end
end
return in_flight
