-- Takes or extends the leadership. holder floor first_start -> {leader, epoch, holder, ttl_ms} | {follower, 0, holder, ttl_ms}
local holder, floor = ARGV[1], tonumber(ARGV[2])
local now = now_ms()
local m = call('HMGET', META, 'epoch', 'leader', 'leader_until', 'born')
local epoch, leader, left = tonumber(m[1]) or 0, m[2], (tonumber(m[3]) or 0) - now
if leader and leader ~= holder and left > 0 then return {'follower', 0, leader, left} end
-- An epoch under the floor is one that a lost Redis forgot: going on under it would let an older leader write.
if leader ~= holder or epoch < floor then epoch = math.max(epoch, floor) + 1 end
call('HSET', META, 'epoch', epoch, 'leader', holder, 'leader_until', now + LEADER_MS)
if not m[4] then
  call('HSET', META, 'born', now)
  if ARGV[3] == '0' then call('HSET', META, 'rebuild_until', now + REBUILD_MS) end
end
return {'leader', epoch, holder, LEADER_MS}
