-- Gives up the leadership, if it is the holder's, and tells the followers. The epoch stays.
-- holder pool -> ok
if call('HGET', META, 'leader') == ARGV[1] then
  call('HDEL', META, 'leader', 'leader_until', 'leader_listens')
  call('PUBLISH', 'qm:resigned', ARGV[2])
end
return 'ok'
