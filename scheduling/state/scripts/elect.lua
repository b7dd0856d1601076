-- Takes or extends the leadership. It is free when its lease has expired, and when its process has stopped to listen on
-- its channel, which means that it died. holder floor first_start -> {leader, epoch, holder, ttl_ms} | {follower, 0,
-- holder, ttl_ms}
local holder, floor = ARGV[1], tonumber(ARGV[2])
even_when_full()
local now = now_ms()
local m = call('HMGET', META, 'epoch', 'leader', 'leader_until', 'born', 'leader_listens')
local epoch, leader, left = tonumber(m[1]) or 0, m[2], (tonumber(m[3]) or 0) - now
-- What is in doubt counts against a leader of which nobody can tell whether it lives. Who takes over too soon is harmless
-- for writes, which are fenced, but its first sweep takes for true what the other's next would have judged.
local doubt = doubted()
local unheard = m[5] and 0 or doubt
if leader ~= holder and led(now + unheard) then return {'follower', 0, leader, left - unheard} end
-- An epoch under the floor is one that a lost Redis forgot: going on under it would let an older leader write.
if leader ~= holder or epoch < floor then epoch = math.max(epoch, floor) + 1 end
-- Behind what is in doubt: a sweep may find that it was time, and must not end what has just begun.
call('HSET', META, 'epoch', epoch, 'leader', holder, 'leader_until', now + doubt + LEADER_MS)
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
