-- What a decision needs: the clock, the ready replicas with their sums, how many preemptible requests run, and how many
-- of each named entitlement.
-- Sums of a replica: run (sequences), kv, work, what counts against its prefill credit, in how many ms that falls if no
-- first token comes, and how much of it is owners'. -> {now_ms, rebuilding_ms, ready, sums: those of each replica, then run of
-- each name and of the pool, preemptible,
-- beginnings that do not count against a prefill credit, as `uncounted` has them}
local now = now_ms()
local pause = tonumber(call('HGET', META, 'rebuild_until') or 0) - now
local ready = offers()
local fields = {}
for i = 1, #ready, 2 do
  local b, n = 'b:' .. ready[i], #fields
  fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = b .. ':run', b .. ':kv', b .. ':work', b .. ':pre'
  fields[n + 5] = b .. ':own'
end
for name in string.gmatch(ARGV[1], '%S+') do fields[#fields + 1] = 'e:' .. name .. ':run' end
fields[#fields + 1] = 'run'
local read, sums = {}, {}
for i = 1, #fields, 1000 do  -- Lua's stack bounds how many words one call may have
  for _, v in ipairs(call('HMGET', TOTALS, unpack(fields, i, math.min(i + 999, #fields)))) do
    read[#read + 1] = tonumber(v) and v or '0'
  end
end
for i = 1, #ready, 2 do
  local j, n, credit = (i - 1) / 2 * 5 + 1, #sums, tonumber(string.match(ready[i + 1], '^%d+ %d+ (%d+)'))
  local ahead, falls = tonumber(read[j + 3]), 0
  if credit > 0 then ahead, falls = ahead_of(ready[i], ahead, now) end
  sums[n + 1], sums[n + 2], sums[n + 3] = read[j], read[j + 1], read[j + 2]
  sums[n + 4], sums[n + 5] = string.format('%.0f', ahead), string.format('%.0f', falls)
  sums[n + 6] = string.format('%.0f', owned_ahead(tonumber(read[j + 4]), ahead))
end
for i = #ready / 2 * 5 + 1, #read do sums[#sums + 1] = read[i] end
return {now, math.max(0, pause), ready, table.concat(sums, ' '), call('ZCARD', PREEMPTIBLE), call('HGETALL', UNCOUNTED)}
