-- A gateway saw a replica fail: the leader probes it at once. backend why -> ok
notify('s', ARGV[1] .. ' ' .. ARGV[2])
return 'ok'
