-- What ready replicas offer.

-- The offer of a replica: slots, KV tokens of all requests and of one, and prefill credit (0: no bound).
local function offered(words)
  local s, k, c, longest, speed = string.match(words or '0 0 0 0 1000', '^(%d+) (%d+) (%d+) (%d+) (%d+)$')
  longest = tonumber(longest)
  return tonumber(s), tonumber(k), longest > 0 and longest or math.huge, tonumber(c), tonumber(speed)
end

local function with_bounds(words, credit, longest, speed)
  return words .. ' ' .. (credit or '0') .. ' ' .. (longest or '0') .. ' ' .. (speed or '1000')
end

-- The ready replicas, each with its offer: `slots kv credit longest speed`. The last three have a hash of their own, as
-- trees that do not know them read two words of `ready`.
local function offers()
  local ready, names = call('HGETALL', READY), {}
  if #ready == 0 then return ready end
  for i = 1, #ready, 2 do
    local n = #names
    names[n + 1], names[n + 2], names[n + 3] = ready[i], ready[i] .. ' longest', ready[i] .. ' speed'
  end
  local bounds = call('HMGET', CREDITS, unpack(names))
  for i = 1, #ready, 2 do
    local n = (i - 1) / 2 * 3
    ready[i + 1] = with_bounds(ready[i + 1], bounds[n + 1], bounds[n + 2], bounds[n + 3])
  end
  return ready
end
