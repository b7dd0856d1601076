-- Re-creates one lease (or, with backend "-", one waiting entry) that a lost state forgot. It is added without asking
-- for room, for it does run; its charge is taken again, for the bucket was forgotten too.
-- id attempt ent backend kv charge work bytes gateway seq record rate depth -> {ok|known|ended, reason}
local id, ent, backend = ARGV[1], ARGV[3], ARGV[4]
local charge, rate, depth = tonumber(ARGV[6]), tonumber(ARGV[12]), tonumber(ARGV[13])
if call('HEXISTS', HELD, id) == 1 or call('HEXISTS', QUEUE, id) == 1 then return {'known', ''} end
local reason = ended(id)
if reason then return {'ended', reason} end

local now = now_ms()
local x = {
  attempt = tonumber(ARGV[2]), ent = ent, backend = backend, kv = tonumber(ARGV[5]), charge = charge,
  work = tonumber(ARGV[7]), bytes = tonumber(ARGV[8]), queued = 0, granted = 0, gateway = ARGV[9],
  seq = tonumber(ARGV[10]), note = '-', record = ARGV[11],
}
if x.seq > tonumber(call('HGET', META, 'seq') or 0) then call('HSET', META, 'seq', x.seq) end
if rate > 0 then
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at')
  local level = b[1] and refill(tonumber(b[1]), tonumber(b[2]), rate, depth, now) or depth
  set_level(ent, level - charge, now, ARGV[12], ARGV[13])
end
if backend == '-' then
  x.queued = now
  put_waiting(id, x, now)
else
  x.granted = now
  put_lease(id, x, now + LEASE_MS)
end
return {'ok', ''}
