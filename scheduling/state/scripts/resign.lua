-- Gives the leadership back at once, if it is the holder's, and tells who would like to lead. The epoch stays.
-- holder pool -> ok
if call('HGET', META, 'leader') == ARGV[1] then
  call('HDEL', META, 'leader', 'leader_until', 'leader_listens')
  call('PUBLISH', 'qm:resigned', ARGV[2])
end
return 'ok'
