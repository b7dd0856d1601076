-- Token buckets, tokens served, and how long a slot is occupied.

-- Token buckets. A level is what it was at `at`; rate and depth are those of the last charge.
local function refill(level, at, rate, depth, now)
  return math.min(depth, level + rate * math.max(0, now - at) / 1000)
end

-- A bucket as it is kept, now; false where it is not known whole.
local function level_now(level, at, rate, depth, now)
  level, at, rate, depth = tonumber(level), tonumber(at), tonumber(rate), tonumber(depth)
  return level and at and rate and depth and refill(level, at, rate, depth, now)
end

local function set_level(ent, level, now, rate, depth)
  call('HSET', BUCKETS, ent .. ':level', string.format('%.6f', level), ent .. ':at', now, ent .. ':rate', rate,
    ent .. ':depth', depth)
end

local function average(old, new)
  old = old and tonumber(old)
  if old then new = 0.9 * old + 0.1 * new end
  return string.format('%.3f', new)
end

-- charge -> actual. May leave less than nothing. `occupied`: for how many ms it had its slot, for the retry times of
-- refusals; nothing where it never ran. `stayed`: for how many ms it was in flight, its wait included.
local function settle(ent, charge, actual, now, occupied, stayed)
  if charge == 0 and not occupied then return end
  local b, level, set
  if charge == 0 then
    b = call('HMGET', BUCKETS, ent .. ':service_ms', ent .. ':stay_ms')
  else
    b = call('HMGET', BUCKETS, ent .. ':service_ms', ent .. ':stay_ms', ent .. ':level', ent .. ':at', ent .. ':rate',
      ent .. ':depth')
    level = level_now(b[3], b[4], b[5], b[6], now)
  end
  set = {}
  if level then
    level = math.min(tonumber(b[6]), level + charge - actual)
    set = {ent .. ':level', string.format('%.6f', level), ent .. ':at', now}
  end
  if occupied then
    set[#set + 1] = ent .. ':service_ms'
    set[#set + 1] = average(b[1], occupied)
    set[#set + 1] = ent .. ':stay_ms'
    set[#set + 1] = average(b[2], stayed)
    call('HSET', META, 'service_ms', average(call('HGET', META, 'service_ms'), occupied))
  end
  if #set > 0 then call('HSET', BUCKETS, unpack(set)) end
end

-- It ended and no entry is left of it: Redis lost what came last (killed before it had written it, or a replica took
-- over that lacked it). It pays what it used, as the ledger says. Where all data was lost buckets follow the ledger.
local function settle_forgotten(ent, used, now)
  if not ent or used == 0 then return end
  local lost = tonumber(call('HGET', META, 'lost'))
  if lost and now - lost <= RESTORE_MS then return end
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at', ent .. ':rate', ent .. ':depth')
  local level = level_now(b[1], b[2], b[3], b[4], now)
  if level then set_level(ent, level - used, now, b[3], b[4]) end
end

-- Tokens served in all. A sum that cannot be increased, which only a wrong figure makes, starts from 0.
local function add_served(ent, more)
  if more == 0 then return end
  local sum = redis.pcall('HINCRBY', METER, ent .. ':served', more)
  if type(sum) == 'table' then call('HSET', METER, ent .. ':served', math.max(0, more)) end
end
