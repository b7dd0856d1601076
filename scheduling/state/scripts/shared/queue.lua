-- Waiting entries. They exist only together with their totals.

-- Its place in `order`, which is sorted by text: within an entitlement by arrival.
local function place_of(id, x)
  return string.format('%s %015.0f %s', x.ent, x.seq, id)
end

local function put_waiting(id, x, now)
  local entry = compose(x)
  call('ZADD', WAITING, now + LEASE_MS, id)
  call('HSET', QUEUE, id, entry)
  call('ZADD', ORDER, 0, place_of(id, x))
  count(x, 0, 1)
  call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_KEPT, '*', 'q', id .. ' ' .. entry)
end

local function drop_waiting(id, x)
  call('ZREM', WAITING, id)
  call('HDEL', QUEUE, id)
  call('ZREM', ORDER, place_of(id, x))
  count(x, 0, -1)
end

-- Deletes an entry that cannot be read. Its totals are unknown: the leader rewrites them.
local function drop_unread(id)
  for _, key in ipairs({LEASES, WAITING, PREEMPTIBLE, LEAVING, PREFILLS, LONG}) do call('ZREM', key, id) end
  for _, key in ipairs({HELD, QUEUE, EVICTED}) do call('HDEL', key, id) end
end
