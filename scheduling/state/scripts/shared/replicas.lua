-- What ready replicas offer.

-- The offer of a replica: slots, KV tokens of all requests and of one, prefill credit (0: no bound), speed, and the time
-- between two tokens of one that is slower than others [us].
local function offered(words)
  local s, k, c, longest, speed, token =
    string.match(words or '0 0 0 0 1000 -1 0 0', '^(%d+) (%d+) (%d+) (%d+) (%d+) %S+ %d+ (%d+)$')
  longest = tonumber(longest)
  return tonumber(s), tonumber(k), longest > 0 and longest or math.huge, tonumber(c), tonumber(speed), tonumber(token)
end

-- How much of what is expected to be cached there of a prompt is believed [per mille], and how many such tokens may be
-- in flight and not count (`set_cached`); false: nothing is expected.
local caches = {}
local function cache_of(backend)
  local c = caches[backend]
  if c == nil then
    local trust, most = string.match(call('HGET', CREDITS, backend .. ' cached') or '', '^(%d+) (%d+)$')
    c = trust and {trust = tonumber(trust), most = tonumber(most)} or false
    caches[backend] = c
  end
  return c
end

local function with_bounds(words, credit, longest, speed, cached, token)
  words = words .. ' ' .. (credit or '0') .. ' ' .. (longest or '0') .. ' ' .. (speed or '1000')
  return words .. ' ' .. (cached or '-1 0') .. ' ' .. (token or '0')
end

-- The ready replicas, each with its offer: `slots kv credit longest speed trust most token`. The last six have a hash of
-- their own, since older versions read two words of `ready`.
local function offers()
  local ready, names = call('HGETALL', READY), {}
  if #ready == 0 then return ready end
  for i = 1, #ready, 2 do
    local n = #names
    names[n + 1], names[n + 2], names[n + 3] = ready[i], ready[i] .. ' longest', ready[i] .. ' speed'
    names[n + 4], names[n + 5] = ready[i] .. ' cached', ready[i] .. ' token'
  end
  local bounds = call('HMGET', CREDITS, unpack(names))
  for i = 1, #ready, 2 do
    local n = (i - 1) / 2 * 5
    ready[i + 1] =
      with_bounds(ready[i + 1], bounds[n + 1], bounds[n + 2], bounds[n + 3], bounds[n + 4], bounds[n + 5])
    if not bounds[n + 4] then caches[ready[i]] = false end
  end
  return ready
end

-- `has_slot_and_kv` in Python: a slot is free while fewer sequences run than there are slots. A request of several
-- sequences needs one free slot only, and may exceed the slots by the rest: if it had to wait for all of them, requests
-- of one sequence would overtake it for ever.
local function has_slot(run, slots) return run < slots end

-- `kv_fits` in Python: if more is reserved than offered, owners do not wait until the difference is gone.
local function kv_fits(room, used, need, owner) return used + need <= room or (owner and used > room) end
