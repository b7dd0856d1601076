-- Ledger entries of requests that never had state, each id once. <= 100 x (id reason record) -> ok
for i = 1, #ARGV, 3 do
  if not ended(ARGV[i]) then
    mark_ended(ARGV[i], ARGV[i + 1])
    call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'r', ARGV[i + 2])
  end
end
return 'ok'
