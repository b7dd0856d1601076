-- Announces in how many ms a pool without a ready replica is expected to serve, since one is woken when requests wait;
-- `admit` lets them wait then. 0: none is woken.
-- epoch ms -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[2] == '0' then call('HDEL', META, 'waking') else call('HSET', META, 'waking', ARGV[2]) end
return 'ok'
