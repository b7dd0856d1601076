-- A request completed: its key is kept as done, with its answer if one is given and fits. The oldest are deleted first.
-- key print request gateway reason kept_ms max_keys max_bytes answer -> ok | lost
local key, print, request, gateway, reason = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local kept_ms, max_keys, max_bytes, answer = tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9]
local now = now_ms()
local x = find(key, now)
if x and x.request ~= request then return 'lost' end
if x and x.state == 'd' then return 'ok' end
call('ZREM', RUNNING, key)
call('HSET', ENTRIES, key, string.format('d %s %s %.0f %s %s', request, gateway, x and x.began or now, print, reason))
call('ZADD', DONE, now + kept_ms, key)
if #answer > 0 and #answer <= max_bytes then
  call('HSET', ANSWERS, key, answer)
  call('ZADD', KEPT, now + kept_ms, key)
  call('INCRBY', BYTES, #answer)
end
for _ = 1, PURGED do
  if call('ZCARD', DONE) <= max_keys then break end
  drop(call('ZRANGE', DONE, 0, 0)[1])
end
for _ = 1, PURGED do
  if (tonumber(call('GET', BYTES)) or 0) <= max_bytes then break end
  drop_answer(call('ZRANGE', KEPT, 0, 0)[1])
end
tidy(now, kept_ms)
return 'ok'
