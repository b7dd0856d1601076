-- How many of those that are able to run wait beside free slots all the same, as the leader found: it has decided.
-- epoch n -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
call('HSET', META, 'decides', ARGV[1])
if ARGV[2] == '0' then call('HDEL', META, 'stuck') else call('HSET', META, 'stuck', ARGV[2]) end
return 'ok'
