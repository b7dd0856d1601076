-- Sums of what waits and runs: of the pool, of each entitlement, of each replica. They count requests; only the `run`
-- of a replica and of an entitlement count sequences, as slots do.

local function figure(text) return text and tonumber(text) or 0 end

-- How many of an entitlement's waiting requests could run if slots were free; no cap: it may burst.
local function able_of(wait, run, cap)
  if not cap then return wait end
  return math.max(0, math.min(wait, cap - run))
end

-- And how many of them within its baseline; without a base there is none.
local function due_of(wait, run, base)
  return base and able_of(wait, run, base) or 0
end

-- Whether a service class owns reserved capacity.
local function reserves(class) return class == 'guaranteed' or class == 'dedicated' end

-- Adds one entry to the totals, or takes it away: `run` and `wait` are 1, 0 or -1. A total that reaches 0 is deleted. An
-- entitlement with nothing left in flight is deleted, unless it is `staying`. -> how many waited before; false: nobody
local function count(x, run, wait, staying)
  local e, b, owned = 'e:' .. x.ent, 'b:' .. x.backend, x.pre > 0 and reserves(x.class)
  local fields = {'run', 'wait', e .. ':run', e .. ':kv', b .. ':run', b .. ':kv', b .. ':work', b .. ':pre', b .. ':own'}
  local v = call('HMGET', TOTALS, unpack(fields, 1, run == 0 and 4 or x.pre == 0 and 7 or owned and 9 or 8))
  local waits = wait ~= 0 or v[2]
  if waits then  -- else all of these are 0, and what may run of it is no sum
    local more = {'able', 'due', 'bytes', e .. ':wait', e .. ':cap', e .. ':base'}
    local w = call('HMGET', TOTALS, unpack(more))
    for i = 1, 6 do fields[9 + i], v[9 + i] = more[i], w[i] end
  end
  local ent_run, ent_wait = figure(v[3]), figure(v[13])
  local sequences = run == 0 and 0 or run * sequences_of(x.record)
  local set, gone, n = {}, {}, 0
  local function add(i, delta)
    if delta == 0 then return end
    local new = figure(v[i]) + delta
    if new == 0 then
      gone[#gone + 1] = fields[i]
    else
      set[n + 1], set[n + 2] = fields[i], new
      n = n + 2
    end
  end
  add(1, run)
  add(3, sequences)
  add(4, (run + wait) * x.kv)
  if run ~= 0 then
    add(5, sequences)
    add(6, run * x.kv)
    add(7, run * x.work)
    if x.pre > 0 then add(8, run * x.pre) end
    if owned then add(9, run * x.pre) end
  end
  if waits then
    local cap, base = tonumber(v[14]), tonumber(v[15])
    add(2, wait)
    add(10, able_of(ent_wait + wait, ent_run + sequences, cap) - able_of(ent_wait, ent_run, cap))
    add(11, due_of(ent_wait + wait, ent_run + sequences, base) - due_of(ent_wait, ent_run, base))
    add(12, wait * x.bytes)
    add(13, wait)
  end
  if not staying and ent_run + ent_wait + sequences + wait == 0 then
    gone[#gone + 1] = e .. ':cap'
    gone[#gone + 1] = e .. ':base'
    call('ZREM', WEIGHTS, x.ent)
  end
  if n > 0 then call('HSET', TOTALS, unpack(set)) end
  if #gone > 0 then call('HDEL', TOTALS, unpack(gone)) end
  if run + wait ~= 0 then count_limits(x.record, run + wait) end
  return v[2]
end

local function shift(name, delta)
  if delta == 0 then return end
  local sum = redis.pcall('HINCRBY', TOTALS, name, delta)
  if sum ~= 0 and type(sum) ~= 'table' then return sum end
  call('HDEL', TOTALS, name)  -- no number: the leader writes it anew
  return 0
end

local function keep_total(name, value, sums)
  if value then sums[#sums + 1], sums[#sums + 2] = name, value else call('HDEL', TOTALS, name) end
end

-- An entitlement has its first request in flight, or its cap or baseline changed: updates `able` and `due`.
-- `sums`: what the caller writes of the totals next.
local function set_limits(ent, wait, run, old_cap, cap, old_base, base, sums)
  if cap ~= old_cap then
    keep_total('e:' .. ent .. ':cap', cap, sums)
    shift('able', able_of(wait, run, cap) - able_of(wait, run, old_cap))
  end
  if base ~= old_base then
    keep_total('e:' .. ent .. ':base', base, sums)
    shift('due', due_of(wait, run, base) - due_of(wait, run, old_base))
  end
end

-- The weight of an entitlement, from the leader's last tick; before the first, from the caller.
local function weight_of(ent, first)
  local s = call('HGET', STANDING, ent)
  return s and string.match(s, '^%S+') or first
end
