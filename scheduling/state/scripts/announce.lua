-- Re-creates one lease (or, with backend "-", one waiting entry) after a loss of state. It is added whether or not there
-- is room, since it runs already; it is charged again, since the bucket was lost too. What a node that took over knows of
-- it from before, an earlier attempt or its wait, makes room for it.
-- id attempt ent class backend kv charge work bytes gateway seq record rate depth cap first_weight served base prefill
-- -> {ok|known|ended, reason}
local id, ent, backend = ARGV[1], ARGV[3], ARGV[5]
local charge, rate, depth = tonumber(ARGV[7]), tonumber(ARGV[13]), tonumber(ARGV[14])
local attempt, now = tonumber(ARGV[2]), now_ms()
local held = call('HGET', HELD, id)
local text = held or call('HGET', QUEUE, id)
if text then
  local before = parse(text)
  local earlier = before and (before.attempt < attempt or before.attempt == attempt and not held and backend ~= '-')
  if not earlier then return {'known', ''} end
  if held then
    drop_lease(id, before)
  else
    drop_waiting(id, before)
    notify('x', id)
  end
  settle(before.ent, before.charge, 0, now)
  settle_limits(before, 0, false, now)
else
  local reason = ended(id)
  if reason then return {'ended', reason} end
end

local x = {
  attempt = attempt, ent = ent, class = ARGV[4], backend = backend, kv = tonumber(ARGV[6]), charge = charge,
  work = tonumber(ARGV[8]), bytes = tonumber(ARGV[9]), queued = 0, granted = 0, gateway = ARGV[10],
  seq = tonumber(ARGV[11]), served = tokens_of(ARGV[17]) or 0, note = '-', pre = tonumber(ARGV[19]),
  record = tail_of(ARGV[12]),
}
local e = 'e:' .. ent
local v = call('HMGET', TOTALS, e .. ':run', e .. ':wait', e .. ':cap', e .. ':base')
local run, wait = tonumber(v[1]) or 0, tonumber(v[2]) or 0
local sums = {}
set_limits(ent, wait, run, tonumber(v[3]) or false, tonumber(ARGV[15]) or false, tonumber(v[4]) or false,
  tonumber(ARGV[18]) or false, sums)
if #sums > 0 then call('HSET', TOTALS, unpack(sums)) end
if run + wait == 0 then call('ZADD', WEIGHTS, weight_of(ent, ARGV[16]), ent) end
if x.seq > tonumber(call('HGET', META, 'seq') or 0) then call('HSET', META, 'seq', x.seq) end
if rate > 0 then
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at')
  local level = b[1] and level_now(b[1], b[2], rate, depth, now) or depth
  set_level(ent, level - charge, now, ARGV[13], ARGV[14])
end
local limits = limits_at(x.record, now)
if limits then
  x.record = limiting().place_users(limits, x.record, now)
  limiting().take(limits, now)
end
if backend == '-' then
  x.queued = now
  put_waiting(id, x, now)
else
  x.granted = now
  charge_prefill(id, x, x.pre, tonumber(call('HGET', TOTALS, 'b:' .. backend .. ':pre')) or 0, now)
  put_lease(id, x, now + LEASE_MS)
end
return {'ok', ''}
