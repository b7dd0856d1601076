-- In how many ms a pool without a ready replica is expected to serve, as one is woken when requests wait (0: none is):
-- admit lets them wait then.
-- epoch ms -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[2] == '0' then call('HDEL', META, 'waking') else call('HSET', META, 'waking', ARGV[2]) end
return 'ok'
