-- The first tokens of streams have come: what their leases held of a prefill credit is given back, each once, and what
-- whole answers hold there that were granted before, as engines take prompts in the order in which they come. An
-- attempt that holds none any more (it ended, moved, or was told of before) gives nothing back. Who waits is told of
-- the room. <= 100 x (id attempt) -> how many gave something back
local told, places, freed, now = 0, {}, false, now_ms()
for i = 1, #ARGV, 2 do
  local text = call('HGET', HELD, ARGV[i])
  if text and string.match(text, '^%d+') == ARGV[i + 1] then
    local pre, backend, granted, left = give_back(ARGV[i], text)
    if pre > 0 then
      local at = places[backend] or {tokens = 0, granted = granted}
      at.tokens, at.granted, at.left = at.tokens + pre, math.min(at.granted, granted), left
      for _, one in ipairs(whole_answers(backend, granted, WHOLE_AT_ONCE)) do
        local more, _, _, after = give_back(one[1], one[2])
        if more > 0 then at.tokens, at.left = at.tokens + more, after end
      end
      places[backend], told, freed = at, told + 1, backend
    end
  end
end
for backend, at in pairs(places) do pace_told(backend, at.left, at.tokens, at.granted, now) end
if freed then offer_free(freed, now) end
return told
