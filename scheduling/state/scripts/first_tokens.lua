-- The first tokens of streams have come: what their leases held of a prefill credit is given back, each once. An
-- attempt that holds none any more (it ended, moved, or was told of before) gives nothing back. Who waits is told of
-- the room. <= 100 x (id attempt) -> how many gave something back
local told, places, freed, now = 0, {}, false, now_ms()
for i = 1, #ARGV, 2 do
  local text = call('HGET', HELD, ARGV[i])
  if text and string.match(text, '^%d+') == ARGV[i + 1] then
    local pre, backend, granted = give_back(ARGV[i], text)
    if pre > 0 then
      local at = places[backend] or {tokens = 0, granted = granted}
      at.tokens, at.granted = at.tokens + pre, math.min(at.granted, granted)
      places[backend], told, freed = at, told + 1, backend
    end
  end
end
for backend, at in pairs(places) do
  local ms, tokens, last = string.match(call('HGET', META, 'prefill:' .. backend) or '0 0 0', '^(%S+) (%S+) (%d+)$')
  ms = PREFILL_KEPT * ms + math.max(1, now - math.max(tonumber(last), at.granted))
  tokens = PREFILL_KEPT * tokens + at.tokens
  call('HSET', META, 'prefill:' .. backend, string.format('%.3f %.3f %.0f', ms, tokens, now))
end
if freed then offer_free(freed, now) end
return told
