-- What ready replicas offer.

-- The offer of a replica: slots, KV tokens of all requests and of one, and prefill credit (0: no bound).
local function offered(words)
  local s, k, c, longest = string.match(words or '0 0 0 0', '^(%d+) (%d+) (%d+) (%d+)$')
  longest = tonumber(longest)
  return tonumber(s), tonumber(k), longest > 0 and longest or math.huge, tonumber(c)
end

local function with_bounds(words, credit, longest)
  return words .. ' ' .. (credit or '0') .. ' ' .. (longest or '0')
end

-- The ready replicas, each with its offer: `slots kv credit longest`. The last two have a hash of their own, as trees
-- that do not know them read two words of `ready`.
local function offers()
  local ready, names = call('HGETALL', READY), {}
  if #ready == 0 then return ready end
  for i = 1, #ready, 2 do
    names[i], names[i + 1] = ready[i], ready[i] .. ' longest'
  end
  local bounds = call('HMGET', CREDITS, unpack(names))
  for i = 1, #ready, 2 do ready[i + 1] = with_bounds(ready[i + 1], bounds[i], bounds[i + 1]) end
  return ready
end
