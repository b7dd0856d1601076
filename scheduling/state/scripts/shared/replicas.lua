-- What ready replicas offer.

-- The offer of a replica: slots, KV tokens and prefill credit (0: no bound). Before format 3 it had no credit.
local function offered(words)
  local s, k, c = string.match(words or '0 0', '^(%d+) (%d+) ?(%d*)$')
  return tonumber(s), tonumber(k), tonumber(c) or 0
end

local known_credits  -- all that CREDITS has, where a script has read it: `pace_of` need not read its part again

-- The ready replicas, each with its offer: `slots kv credit`. Credits have a hash of their own, as trees that know none
-- read two words of `ready`.
local function offers()
  local ready, flat, credits = call('HGETALL', READY), call('HGETALL', CREDITS), {}
  for i = 1, #flat, 2 do credits[flat[i]] = flat[i + 1] end
  known_credits = credits
  for i = 1, #ready, 2 do ready[i + 1] = ready[i + 1] .. ' ' .. (credits[ready[i]] or '0') end
  return ready
end
