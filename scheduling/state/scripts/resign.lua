-- Gives the leadership back at once, if it is the holder's. The epoch stays. holder -> ok
if call('HGET', META, 'leader') == ARGV[1] then call('HDEL', META, 'leader', 'leader_until') end
return 'ok'
