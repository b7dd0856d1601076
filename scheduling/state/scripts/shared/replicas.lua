-- What ready replicas offer.

-- The offer of a replica: slots, KV tokens and prefill credit (0: no bound). Before format 3 it had no credit.
local function offered(words)
  local s, k, c = string.match(words or '0 0', '^(%d+) (%d+) ?(%d*)$')
  return tonumber(s), tonumber(k), tonumber(c) or 0
end

-- The ready replicas, each with its offer: `slots kv credit`. Credits have a hash of their own, as trees that know none
-- read two words of `ready`.
local function offers()
  local ready, names = call('HGETALL', READY), {}
  if #ready == 0 then return ready end
  for i = 1, #ready, 2 do names[#names + 1] = ready[i] end
  local credits = call('HMGET', CREDITS, unpack(names))
  for i = 1, #names do ready[2 * i] = ready[2 * i] .. ' ' .. (credits[i] or '0') end
  return ready
end
