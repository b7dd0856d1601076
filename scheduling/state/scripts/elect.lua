-- Takes or extends the leadership. It is free when its lease has expired, and when its process has stopped to listen on
-- its channel, which means that it died. holder floor first_start -> {leader, epoch, holder, ttl_ms} | {follower, 0,
-- holder, ttl_ms}
local holder, floor = ARGV[1], tonumber(ARGV[2])
even_when_full()
local now = now_ms()
local m = call('HMGET', META, 'epoch', 'leader', 'leader_until', 'born')
local epoch, leader, left = tonumber(m[1]) or 0, m[2], (tonumber(m[3]) or 0) - now
left = left - doubted()  -- who takes over too soon does no harm: leaders are fenced
if leader ~= holder and led(now + doubted()) then return {'follower', 0, leader, left} end
-- An epoch under the floor is one that a lost Redis forgot: going on under it would let an older leader write.
if leader ~= holder or epoch < floor then epoch = math.max(epoch, floor) + 1 end
call('HSET', META, 'epoch', epoch, 'leader', holder, 'leader_until', now + LEADER_MS)
if call('PUBSUB', 'NUMSUB', 'qm:leader:' .. holder)[2] > 0 then
  call('HSET', META, 'leader_listens', 1)
else
  call('HDEL', META, 'leader_listens')
end
if not m[4] then
  call('HSET', META, 'born', now)
  if ARGV[3] == '0' then call('HSET', META, 'rebuild_until', now + REBUILD_MS, 'lost', now) end
end
return {'leader', epoch, holder, LEADER_MS}
