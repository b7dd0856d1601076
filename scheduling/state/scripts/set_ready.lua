-- Puts a replica in or out of those that may get work; its leases stay. epoch backend in slots kv -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[3] == '1' then
  call('HSET', READY, ARGV[2], ARGV[4] .. ' ' .. ARGV[5])
else
  call('HDEL', READY, ARGV[2])
end
return 'ok'
