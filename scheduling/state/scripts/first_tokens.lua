-- First tokens of streams have come: returns the prefill credit that their leases held, each once, and that of whole
-- answers granted before them, unless a stream may have overtaken those (`shows` in Python). An attempt that holds none
-- any more (it ended, moved, or was reported before) returns nothing. The leader is told of the room.
-- <= 100 x (id attempt) -> how many returned something
local told, places, freed, now = 0, {}, false, now_ms()
local function rank_of(text) return tonumber(string.match(text, '"rank":(%-?%d+)')) or 0 end

for i = 1, #ARGV, 2 do
  local text = call('HGET', HELD, ARGV[i])
  if text and string.match(text, '^%d+') == ARGV[i + 1] then
    local pre, backend, granted, owned = give_back(ARGV[i], text)
    if pre > 0 then
      local at = places[backend]
      if not at then
        at = {told = 0, tokens = 0, owned = 0, first = granted, last = granted, ranks = {}}
        places[backend] = at
      end
      at.told, at.tokens, at.owned = at.told + 1, at.tokens + pre, at.owned + owned
      at.first, at.last = math.min(at.first, granted), math.max(at.last, granted)
      local rank = rank_of(text)
      at.ranks[rank] = math.max(at.ranks[rank] or 0, granted)
      told, freed = told + 1, backend
    end
  end
end
for backend, at in pairs(places) do
  for _, one in ipairs(whole_answers(backend, at.last, at.told * WHOLE_AT_ONCE)) do
    local rank, granted, shown = rank_of(one[2]), tonumber(string.match(one[2], GRANTED)), false
    for of, last in pairs(at.ranks) do shown = shown or rank <= of and granted <= last end
    local pre, _, _, owned = 0
    if shown then pre, _, _, owned = give_back(one[1], one[2]) end
    if pre > 0 then at.tokens, at.owned = at.tokens + pre, at.owned + owned end
  end
  pace_told(backend, given_back(backend, at.tokens, at.owned), at.tokens, at.first, now)
end
if freed then offer_free(freed, now) end
return told
