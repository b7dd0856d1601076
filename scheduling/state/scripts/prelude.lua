-- What every script of a pool shares. KEYS[1] is the pool's prefix, `qm:{<pool>}:`: all its keys have one hash tag.
local P = KEYS[1]
local META, READY, TOTALS, BUCKETS = P .. 'meta', P .. 'ready', P .. 'totals', P .. 'buckets'
local LEASES, HELD, WAITING, QUEUE = P .. 'leases', P .. 'held', P .. 'waiting', P .. 'queue'
local EVENTS, LEDGER = P .. 'events', P .. 'ledger'
local call = redis.call

-- An entry: twelve words and the record (scheduling/state/codec.py).
local WORDS = '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (%S+) (.*)$'

local function parse(text)
  local a, e, b, kv, c, w, by, q, g, gw, s, n, r = string.match(text, WORDS)
  return {
    attempt = tonumber(a), ent = e, backend = b, kv = tonumber(kv), charge = tonumber(c), work = tonumber(w),
    bytes = tonumber(by), queued = q, granted = tonumber(g), gateway = gw, seq = tonumber(s), note = n, record = r,
  }
end

local function compose(x)
  return string.format(
    '%d %s %s %d %d %d %d %.0f %.0f %s %d %s %s', x.attempt, x.ent, x.backend, x.kv, x.charge, x.work, x.bytes,
    x.queued, x.granted, x.gateway, x.seq, x.note, x.record
  )
end

-- Adds to sums; a sum that reaches 0 is deleted.
local function shift(fields, deltas)
  local old = call('HMGET', TOTALS, unpack(fields))
  local set, gone = {}, {}
  for i = 1, #fields do
    if deltas[i] ~= 0 then
      local new = (tonumber(old[i]) or 0) + deltas[i]
      if new == 0 then
        gone[#gone + 1] = fields[i]
      else
        set[#set + 1] = fields[i]
        set[#set + 1] = new
      end
    end
  end
  if #set > 0 then call('HSET', TOTALS, unpack(set)) end
  if #gone > 0 then call('HDEL', TOTALS, unpack(gone)) end
end

local function count_lease(x, sign)
  local e, b = 'e:' .. x.ent, 'b:' .. x.backend
  shift(
    {'run', e .. ':run', e .. ':kv', b .. ':run', b .. ':kv', b .. ':work'},
    {sign, sign, sign * x.kv, sign, sign * x.kv, sign * x.work}
  )
end

local function count_waiting(x, sign)
  local e = 'e:' .. x.ent
  shift({'wait', 'bytes', e .. ':wait', e .. ':kv'}, {sign, sign * x.bytes, sign, sign * x.kv})
end

-- Leases and waiting entries exist only together with their totals.
local function put_lease(id, x, expiry)
  call('ZADD', LEASES, expiry, id)
  call('HSET', HELD, id, compose(x))
  count_lease(x, 1)
end

local function drop_lease(id, x)
  call('ZREM', LEASES, id)
  call('HDEL', HELD, id)
  count_lease(x, -1)
end

local function put_waiting(id, x, now)
  local entry = compose(x)
  call('ZADD', WAITING, now + LEASE_MS, id)
  call('HSET', QUEUE, id, entry)
  count_waiting(x, 1)
  call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_KEPT, '*', 'q', id .. ' ' .. entry)
end

local function drop_waiting(id, x)
  call('ZREM', WAITING, id)
  call('HDEL', QUEUE, id)
  count_waiting(x, -1)
end

local function ring(kind, value)
  call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_KEPT, '*', kind, value)
end

-- A slot became free: of interest only while somebody waits.
local function ring_free(backend)
  if call('HGET', TOTALS, 'wait') then ring('f', backend) end
end

local function ended(id)
  return call('GET', P .. 'ended:' .. id)
end

local function mark_ended(id, reason)
  call('SET', P .. 'ended:' .. id, reason, 'PX', ENDED_MS)
end

-- Token buckets. A level is what it was at `at`; rate and depth are those of the last charge.
local function refill(level, at, rate, depth, now)
  return math.min(depth, level + rate * math.max(0, now - at) / 1000)
end

local function set_level(ent, level, now, rate, depth)
  call('HSET', BUCKETS, ent .. ':level', string.format('%.6f', level), ent .. ':at', now, ent .. ':rate', rate,
    ent .. ':depth', depth)
end

-- charge -> actual. May leave less than nothing.
local function settle(ent, charge, actual, now)
  if charge == 0 then return end
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at', ent .. ':rate', ent .. ':depth')
  if not b[1] then return end
  local depth = tonumber(b[4])
  local level = refill(tonumber(b[1]), tonumber(b[2]), tonumber(b[3]), depth, now)
  call('HSET', BUCKETS, ent .. ':level', string.format('%.6f', math.min(depth, level + charge - actual)),
    ent .. ':at', now)
end

local function average(old, new)
  if old then new = 0.9 * tonumber(old) + 0.1 * new end
  return string.format('%.3f', new)
end

-- How long a slot was occupied, for the retry times of refusals.
local function learn_service(ent, ms)
  call('HSET', META, 'service_ms', average(call('HGET', META, 'service_ms'), ms))
  call('HSET', BUCKETS, ent .. ':service_ms', average(call('HGET', BUCKETS, ent .. ':service_ms'), ms))
end

-- The ready replicas and sums: of the pool, of one entitlement, and of each replica. One read of each hash.
local function survey(ent)
  local ready = call('HGETALL', READY)
  local e = 'e:' .. ent
  local fields = {'run', 'wait', 'bytes', e .. ':run', e .. ':wait', e .. ':kv'}
  for i = 1, #ready, 2 do
    local b = 'b:' .. ready[i]
    local n = #fields
    fields[n + 1], fields[n + 2], fields[n + 3] = b .. ':run', b .. ':kv', b .. ':work'
  end
  local v = call('HMGET', TOTALS, unpack(fields))
  for i = 1, #fields do v[i] = tonumber(v[i]) or 0 end
  return ready, v
end

-- The replica with room and the least outstanding work (ties: fewest running, then name), with its place in the
-- survey; and the slots of all ready replicas.
local function choose(ready, v, kv, exclude)
  local best, at, best_run, best_work, slots = false, 0, 0, 0, 0
  for i = 1, #ready, 2 do
    local name = ready[i]
    local s, k = string.match(ready[i + 1], '^(%d+) (%d+)$')
    s, k = tonumber(s), tonumber(k)
    slots = slots + s
    local j = 7 + (i - 1) / 2 * 3
    local run, work = v[j], v[j + 2]
    if name ~= exclude and run < s and v[j + 1] + kv <= k then
      if not best or work < best_work
        or (work == best_work and (run < best_run or (run == best_run and name < best))) then
        best, at, best_run, best_work = name, j, run, work
      end
    end
  end
  return best, at, slots
end

-- Leaders write under the pool's epoch. Any other is refused: a lower one was superseded, a higher one means that the
-- state behind it was lost and nobody has been elected since.
local function fenced(epoch)
  return tonumber(call('HGET', META, 'epoch') or -1) ~= tonumber(epoch)
end
