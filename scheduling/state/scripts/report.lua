-- The attempts of a gateway since its last report, passed on to the leader. data (JSON) -> ok
notify('a', ARGV[1])
return 'ok'
