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

-- `missed_deadline` in Python: of an entitlement's first waiting requests, in order of arrival, the first one that no
-- replica has worked on, if its first token is late already; nothing else: those behind it are due later, and this is
-- read at every refusal. Times in a record are those of its gateway's clock, which read `sent_s`.
local function missed_deadline(ent, now)
  local first = call('ZRANGEBYLEX', ORDER, '[' .. ent .. ' ', '(' .. ent .. '!', 'LIMIT', 0, SUPERSEDABLE)
  for _, member in ipairs(first) do
    local id = string.match(member, '^%S+ %d+ (.*)$')
    local text = id and call('HGET', QUEUE, id)
    local x = text and parse(text)
    if x and x.attempt == 1 then
      local due = tonumber(string.match(x.record, '"ttft_deadline_s":(%d[%d.]*)'))
      local sent = due and tonumber(string.match(x.record, '"sent_s":(%d[%d.]*)'))
      if sent and sent > 0 then due = due + ((tonumber(x.queued) or 0) / 1000 - sent) end
      return due and due < now / 1000 and {id = id, x = x}
    end
  end
end

-- A waiting request ends at once; its gateway is told, and when its client should return. Its accounts stay open until
-- the gateway says so (`finish`), or is found dead (`sweep`), as those of an evicted one.
local function supersede(id, x, now, retry_ms)
  drop_waiting(id, x)
  call('HSET', EVICTED, id, compose(x))
  call('ZADD', LEAVING, now + LEASE_MS, id)
  call('SET', P .. 'ended:' .. id, 'superseded')
  notify('x', id)
  call('PUBLISH', 'qm:gw:' .. x.gateway, id .. ' ' .. x.attempt .. ' - superseded ' .. retry_ms)
end

-- Deletes an entry that cannot be read. Its totals are unknown: the leader rewrites them.
local function drop_unread(id)
  for _, key in ipairs({LEASES, WAITING, PREEMPTIBLE, LEAVING, PREFILLS, LONG}) do call('ZREM', key, id) end
  for _, key in ipairs({HELD, QUEUE, EVICTED}) do call('HDEL', key, id) end
end
