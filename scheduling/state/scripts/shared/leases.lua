-- Leases. They exist only together with their totals.

-- A lease takes of the prefill credit of its replica, if that has one; `tokens` of its prompt, up to a `point`, do not
-- count. Nobody sees the first token of a whole answer: its replica's engine tells of them (`prefilled`). Before the
-- sums are changed.
local function charge_prefill(id, x, credit, used, now, point, tokens)
  if credit == 0 then x.pre = 0 end
  if x.pre == 0 then return end
  if point and tokens > 0 then
    take_beginning(x.backend, point, tokens)
    x.pre, x.record = x.pre - tokens, '"uncounted":"' .. point .. '",' .. x.record
  end
  local whole = is_whole(x.record)
  if whole then call('ZADD', PREFILLS, now, id) end
  if x.pre >= LONG_TOKENS then call('ZADD', LONG, now, id) end
  pace_granted(x.backend, used, x.pre, whole, now)
end

local function keep_lease(id, x, expiry)
  remember_place(x)
  call('ZADD', LEASES, expiry, id)
  call('HSET', HELD, id, compose(x))
  if x.class == 'preemptible' then call('ZADD', PREEMPTIBLE, x.granted, id) end
end

local function put_lease(id, x, expiry)
  keep_lease(id, x, expiry)
  count(x, 1, 0)
end

-- -> how many requests wait; false: none
local function drop_lease(id, x, staying)
  call('ZREM', LEASES, id)
  call('HDEL', HELD, id)
  if x.class == 'preemptible' then call('ZREM', PREEMPTIBLE, id) end
  if x.pre > 0 then
    call('ZREM', PREFILLS, id)
    if x.pre >= LONG_TOKENS then call('ZREM', LONG, id) end
    leave_beginning(x.backend, x.record, 1)
  end
  return count(x, -1, 0, staying)
end
