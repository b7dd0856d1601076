-- Announces how many waiting requests cannot use the free slots although they may run, as the leader found in its last
-- decision, and how many free slots it keeps for baselines (scheduling/core/capacity/headroom.py; -1: as configured).
-- epoch n kept -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
call('HSET', META, 'decides', ARGV[1])
if ARGV[2] == '0' then call('HDEL', META, 'stuck') else call('HSET', META, 'stuck', ARGV[2]) end
if ARGV[3] == '-1' then call('HDEL', META, 'kept') else call('HSET', META, 'kept', ARGV[3]) end
return 'ok'
