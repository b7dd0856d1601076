-- Replaces which replicas have which adapter, as the leader sees it.
-- epoch, then (adapter, `1 ` or `0 ` and replicas: shared/adapters.lua) -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
call('DEL', ADAPTERS)
for i = 2, #ARGV, 2 do call('HSET', ADAPTERS, ARGV[i], ARGV[i + 1]) end
return 'ok'
