-- When refused clients return, and what an arrival is refused by. Declared here, they are made once for all arrivals of a
-- call.

-- `served_every_ms` in Python: a request of several sequences takes as many places.
local function every(places, ms, sequences) return math.min(ms, ms / math.max(1, places) * sequences) end

-- How long requests of an entitlement have their slot [ms], between two of which it has one back, and when the last of its
-- refused clients was told to return.
local function times_of(ent, inflight, sequences)
  local b = call('HMGET', BUCKETS, ent .. ':service_ms', ent .. ':stay_ms', ent .. ':told')
  local service = tonumber(b[1]) or SERVICE_MS
  return {service = service, served = every(inflight, tonumber(b[2]) or service, sequences), last = b[3]}
end

local function pool_service() return tonumber(call('HGET', META, 'service_ms')) or SERVICE_MS end

-- Refused clients are told to come back one after the other: `come_back` in Python. `last`: when the one before returns.
local function come_back(ent, last, now, first_ms, every_ms)
  local told = math.min(MAX_TOLD_MS, math.max(0, (tonumber(last) or 0) - now))
  call('HSET', BUCKETS, ent .. ':told', now + math.min(MAX_TOLD_MS, told + math.ceil(every_ms * SERVED_PER_RETURN)))
  return math.ceil(first_ms + told)
end

-- Others go first: the weight is under the pool's own threshold, or it is the lightest of several in flight.
local function outranked(ent, rules)
  local first_weight, threshold = string.match(rules, '^(%S+) (%S+)')
  local weight = tonumber(weight_of(ent, first_weight))
  if weight <= tonumber(threshold) then return true end
  local low = call('ZRANGE', WEIGHTS, 0, 0, 'WITHSCORES')
  if not low[2] or weight > tonumber(low[2]) then return false end
  return weight < tonumber(call('ZREVRANGE', WEIGHTS, 0, 0, 'WITHSCORES')[2])
end

local function queue_limit(rules) return tonumber(string.match(rules, '^%S+ %S+ (%S+)')) end

-- The pool's queue has no place for one of so many `bytes` beside `n` of `size` in all; who is within a baseline has more.
local function no_place(n, size, bytes, rules, based)
  local places, room = string.match(rules, '^%S+ %S+ %S+ (%S+) (%S+)')
  places, room = tonumber(places), tonumber(room)
  if based then
    places, room = places + math.floor(places / EXTRA_PLACES), room + math.floor(room / EXTRA_PLACES)
  end
  return n >= places or size + bytes > room
end
