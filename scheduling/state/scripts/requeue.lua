-- An attempt failed before it sent a byte: the next one takes another slot, or waits under its old arrival number.
-- Limits are not checked again: the request is admitted, and its charge stands.
-- `cap`: how many of its entitlement may run; `base`: how many of them the pool's headroom is for. A request whose
-- prefill was `interrupted` waits in any case: it made room for another one.
-- id attempt cap exclude bytes record base headroom prefill interrupted -> as admit, or stale
local id, attempt, cap, exclude = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]
local now = now_ms()

local function answer(status, what, figure, x)
  local _, v = survey(x.ent)
  return {status, what, figure, v[5] + v[6], '', x.seq, x.attempt, x.backend ~= '-' and x.pre or 0}
end

local text = call('HGET', HELD, id)
local held = text and parse(text)
if held and held.attempt == attempt + 1 then return answer('granted', held.backend, 0, held) end
if not held then
  text = call('HGET', QUEUE, id)
  local queued = text and parse(text)
  if queued and queued.attempt == attempt + 1 then
    return answer('queued', '', tonumber(call('HGET', TOTALS, 'wait')), queued)
  end
  local reason = not queued and ended(id)
  if reason then return {'ended', reason, -1, 0, '', 0, attempt} end
end
if not held or held.attempt ~= attempt then return {'stale', '', -1, 0, '', 0, attempt} end

drop_lease(id, held, true)
local failed_at = held.backend
local limits = string.match(held.record, LIMITS)
held.attempt, held.bytes, held.record, held.note = attempt + 1, tonumber(ARGV[5]), tail_of(ARGV[6]), '-'
if limits then held.record = with_limits(held.record, limits) end  -- it counts as who it was admitted as
held.pre = tonumber(ARGV[9])

local ready, v = survey(held.ent)
local base = tonumber(ARGV[7])
local owner = owns(held, v[5], base)
local backend, at, _, free, _, credit = choose(ready, v, held.kv, exclude, held.pre, held.record, owner,
  homes_of(held.record))
local kept = v[5] < base and 0 or tonumber(call('HGET', META, 'kept')) or tonumber(ARGV[8])
local direct = backend and free - kept > v[4] and v[5] < cap and (credit == 0 or v[4] == 0) and ARGV[10] == '0'
if direct and not beside_long(backend, credit, v[at + 3], held.pre) then
  held.backend, held.granted, held.note = backend, now, 'direct'
  charge_prefill(id, held, credit, v[at + 3], now, believed(backend, held.pre, held.record))
  put_lease(id, held, now + LEASE_MS)
  return answer('granted', backend, 0, held)
end
held.backend, held.queued, held.granted = '-', now, 0
put_waiting(id, held, now)
local queued = answer('queued', '', v[2] + 1, held)
offer_free(failed_at, now)
return queued
