-- How many of those that are able to run wait beside free slots all the same, as the leader found. epoch n -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[2] == '0' then call('HDEL', META, 'stuck') else call('HSET', META, 'stuck', ARGV[2]) end
return 'ok'
