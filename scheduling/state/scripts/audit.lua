-- The tokens in buckets, leases and the ledger stream at one instant, for the leader to compare. Changes nothing.
-- most -> {now, born, last id of the ledger stream, {ent, charge of what is in flight, ...}, buckets}; or {now} where
-- there are more than `most` entries
local now = now_ms()
if call('HLEN', HELD) + call('HLEN', QUEUE) + call('HLEN', EVICTED) > tonumber(ARGV[1]) then return {now} end
local reserved = {}
for _, key in ipairs({HELD, QUEUE, EVICTED}) do
  for _, text in ipairs(call('HVALS', key)) do
    local ent, charge = string.match(
      text, '^%d+ (%S+) %S+ %S+ %d+ (%d+) %d+ %d+ %d+ %d+ %S+ %d+ %d+ %S+ ' .. HEAD)
    if not ent then
      local x = parse(text)
      if x then ent, charge = x.ent, x.charge end
    end
    if ent then reserved[ent] = (reserved[ent] or 0) + tonumber(charge) end
  end
end
local flat = {}
for ent, charge in pairs(reserved) do
  flat[#flat + 1] = ent
  flat[#flat + 1] = charge
end
local last = '0-0'
local info = redis.pcall('XINFO', 'STREAM', LEDGER)
if type(info) == 'table' and not info.err then
  for i = 1, #info - 1, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
end
return {now, call('HGET', META, 'born') or '0', last, flat, call('HGETALL', BUCKETS)}
