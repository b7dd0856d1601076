-- What a decision needs and no more: the clock, the replicas that may get work with their sums, how many preemptible
-- requests run, and how many of each named entitlement.
-- -> {now_ms, rebuilding_ms, ready, sums: run kv work prefill of each replica, then run of each name, preemptible}
local now = now_ms()
local pause = tonumber(call('HGET', META, 'rebuild_until') or 0) - now
local ready = offers()
local fields, bound = {}, false
for i = 1, #ready, 2 do
  local b, n = 'b:' .. ready[i], #fields
  fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = b .. ':run', b .. ':kv', b .. ':work', b .. ':pre'
  bound = bound or select(3, offered(ready[i + 1])) > 0
end
if bound then give_back_due(now) end
for name in string.gmatch(ARGV[1], '%S+') do fields[#fields + 1] = 'e:' .. name .. ':run' end
local sums = {}
for i = 1, #fields, 1000 do  -- Lua's stack bounds how many words one call may have
  for _, v in ipairs(call('HMGET', TOTALS, unpack(fields, i, math.min(i + 999, #fields)))) do
    sums[#sums + 1] = tonumber(v) and v or '0'
  end
end
return {now, math.max(0, pause), ready, table.concat(sums, ' '), call('ZCARD', PREY)}
