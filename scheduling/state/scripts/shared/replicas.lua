-- What ready replicas offer.

-- The offer of a replica: slots, KV tokens of all requests and of one, prefill credit (0: no bound), speed, and the time
-- between two tokens of one that is slower than others [us].
local function offer_of(words, credit, longest, speed, token)
  local slots, kv = string.match(words or '0 0', '^(%d+) (%d+)')
  return {
    slots = tonumber(slots), kv = tonumber(kv), longest = longest and longest ~= '0' and tonumber(longest) or math.huge,
    credit = credit and tonumber(credit) or 0, speed = speed and tonumber(speed) or 1000,
    token = token and tonumber(token) or 0,
  }
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

-- The ready replicas, each with `slots kv`, and their bounds, five of each. These have a hash of their own, since older
-- versions read two words of `ready`.
local function bounds_of_ready()
  local ready, names, n = call('HGETALL', READY), {}, 0
  if #ready == 0 then return ready, names end
  for i = 1, #ready, 2 do
    local name = ready[i]
    names[n + 1], names[n + 2], names[n + 3], names[n + 4], names[n + 5] =
      name, name .. ' longest', name .. ' speed', name .. ' cached', name .. ' token'
    n = n + 5
  end
  return ready, call('HMGET', CREDITS, unpack(names))
end

-- The ready replicas, each with its offer as words: `slots kv credit longest speed trust most token`.
local function offers()
  local ready, bounds = bounds_of_ready()
  for i = 1, #ready, 2 do
    local n = (i - 1) / 2 * 5
    ready[i + 1] =
      with_bounds(ready[i + 1], bounds[n + 1], bounds[n + 2], bounds[n + 3], bounds[n + 4], bounds[n + 5])
  end
  return ready
end

-- The ready replicas, each with its offer. No script that asks for them changes them, so they are read once.
local ready_now
local function ready_offers()
  if ready_now then return ready_now end
  local ready, bounds = bounds_of_ready()
  local n = 0
  for i = 1, #ready, 2 do
    ready[i + 1] = offer_of(ready[i + 1], bounds[n + 1], bounds[n + 2], bounds[n + 3], bounds[n + 5])
    if not bounds[n + 4] then caches[ready[i]] = false end
    n = n + 5
  end
  ready_now = ready
  return ready
end

-- `has_slot_and_kv` in Python: a slot is free while fewer sequences run than there are slots. A request of several
-- sequences needs one free slot only, and may exceed the slots by the rest: if it had to wait for all of them, requests
-- of one sequence would overtake it for ever.
local function has_slot(run, slots) return run < slots end

-- `kv_fits` in Python: if more is reserved than offered, owners do not wait until the difference is gone.
local function kv_fits(room, used, need, owner) return used + need <= room or (owner and used > room) end
