-- Debits buckets with what was used before the data was lost, each once: `from` is how many were debited before.
-- epoch from, then <= 100 x (ent owed rate depth) -> fenced, or how many are debited in all
if fenced(ARGV[1]) then return 'fenced' end
local done = tonumber(call('HGET', META, 'debited') or 0)
if done ~= tonumber(ARGV[2]) then return done end
local now = now_ms()
for i = 3, #ARGV, 4 do
  local ent, rate, depth = ARGV[i], tonumber(ARGV[i + 2]), tonumber(ARGV[i + 3])
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at')
  local level = b[1] and level_now(b[1], b[2], rate, depth, now) or depth
  set_level(ent, level - tonumber(ARGV[i + 1]), now, ARGV[i + 2], ARGV[i + 3])
  done = done + 1
end
call('HSET', META, 'debited', done)
return done
