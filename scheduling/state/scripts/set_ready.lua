-- Puts a replica in or out of those that may get work; its leases stay. One that is taken out because it is ill is
-- told to all gateways: what runs there without a byte yet had better run elsewhere.
-- epoch backend in slots kv ill prefill_credit step_tokens -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[3] == '1' then
  call('HSET', READY, ARGV[2], ARGV[4] .. ' ' .. ARGV[5])
  if ARGV[7] == '0' then call('HDEL', CREDITS, ARGV[2]) else call('HSET', CREDITS, ARGV[2], ARGV[7]) end
  if ARGV[8] == '0' then
    call('HDEL', CREDITS, ARGV[2] .. ' step')
  else
    call('HSET', CREDITS, ARGV[2] .. ' step', ARGV[8])
  end
else
  call('HDEL', READY, ARGV[2])
  call('HDEL', CREDITS, ARGV[2], ARGV[2] .. ' step', ARGV[2] .. ' pace')
  if ARGV[6] == '1' then call('PUBLISH', 'qm:ejected', ARGV[2]) end
end
return 'ok'
