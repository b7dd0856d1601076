-- Sums of what waits and runs: of the pool, of each entitlement, of each replica. They count requests; only the `run`
-- of a replica and of an entitlement count sequences, as slots do.

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
-- entitlement with nothing left in flight is deleted, unless it is `staying`.
local function count(x, run, wait, staying)
  local e, b = 'e:' .. x.ent, 'b:' .. x.backend
  local fields = {'able', 'run', 'wait', 'bytes', e .. ':run', e .. ':wait', e .. ':kv', e .. ':cap', b .. ':run',
    b .. ':kv', b .. ':work', 'due', e .. ':base', b .. ':pre', b .. ':own'}
  local v = call('HMGET', TOTALS, unpack(fields))
  local ent_run, ent_wait, cap, base = tonumber(v[5]) or 0, tonumber(v[6]) or 0, tonumber(v[8]), tonumber(v[13])
  local sequences = run == 0 and 0 or run * sequences_of(x.record)
  local able = able_of(ent_wait + wait, ent_run + sequences, cap) - able_of(ent_wait, ent_run, cap)
  local due = due_of(ent_wait + wait, ent_run + sequences, base) - due_of(ent_wait, ent_run, base)
  local deltas = {able, run, wait, wait * x.bytes, sequences, wait, (run + wait) * x.kv, 0, sequences, run * x.kv,
    run * x.work, due, 0, run * x.pre, reserves(x.class) and run * x.pre or 0}
  local set, gone = {}, {}
  for i = 1, #fields do
    if deltas[i] ~= 0 then
      local new = (tonumber(v[i]) or 0) + deltas[i]
      if new == 0 then
        gone[#gone + 1] = fields[i]
      else
        set[#set + 1] = fields[i]
        set[#set + 1] = new
      end
    end
  end
  if not staying and ent_run + ent_wait + sequences + wait == 0 then
    if v[8] then gone[#gone + 1] = fields[8] end
    if v[13] then gone[#gone + 1] = fields[13] end
    call('ZREM', WEIGHTS, x.ent)
  end
  if #set > 0 then call('HSET', TOTALS, unpack(set)) end
  if #gone > 0 then call('HDEL', TOTALS, unpack(gone)) end
  if run + wait ~= 0 then count_limits(x.record, run + wait) end
end

local function shift(name, delta)
  if delta == 0 then return end
  local sum = redis.pcall('HINCRBY', TOTALS, name, delta)
  if sum ~= 0 and type(sum) ~= 'table' then return sum end
  call('HDEL', TOTALS, name)  -- no number: the leader writes it anew
  return 0
end

local function keep_total(name, value)
  if value then call('HSET', TOTALS, name, value) else call('HDEL', TOTALS, name) end
end

-- An entitlement has its first request in flight, or its cap or baseline changed: updates `able` and `due`.
local function set_limits(ent, wait, run, old_cap, cap, old_base, base)
  if cap ~= old_cap then
    keep_total('e:' .. ent .. ':cap', cap)
    shift('able', able_of(wait, run, cap) - able_of(wait, run, old_cap))
  end
  if base ~= old_base then
    keep_total('e:' .. ent .. ':base', base)
    shift('due', due_of(wait, run, base) - due_of(wait, run, old_base))
  end
end

-- The weight of an entitlement, from the leader's last tick; before the first, from the caller.
local function weight_of(ent, first)
  local s = call('HGET', STANDING, ent)
  return s and string.match(s, '^%S+') or first
end
