-- Leases. They exist only together with their totals.

local function keep_lease(id, x, expiry)
  remember_place(x)
  call('ZADD', LEASES, expiry, id)
  call('HSET', HELD, id, compose(x))
  if x.class == 'preemptible' then call('ZADD', PREY, x.granted, id) end
end

local function put_lease(id, x, expiry)
  keep_lease(id, x, expiry)
  count(x, 1, 0)
end

local function drop_lease(id, x, staying)
  call('ZREM', LEASES, id)
  call('HDEL', HELD, id)
  if x.class == 'preemptible' then call('ZREM', PREY, id) end
  if x.pre > 0 then call('ZREM', PREFILLS, id) end
  count(x, -1, 0, staying)
end
