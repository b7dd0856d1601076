-- Ledger entries of requests that never had state, each id once. One that does live is left to `finish` and `sweep`.
-- <= 100 x (id reason record) -> ok
for i = 1, #ARGV, 3 do
  local id = ARGV[i]
  if not ended(id) and call('HEXISTS', HELD, id) == 0 and call('HEXISTS', QUEUE, id) == 0 then
    mark_ended(id, ARGV[i + 1])
    call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'r', ARGV[i + 2])
  end
end
return 'ok'
