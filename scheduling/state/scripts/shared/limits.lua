-- Limits of keys and users: their buckets, the tracked users, and the first limit that is exceeded.
-- Few requests have any. A server creates every function of a script in each call, so these are created only if needed.

local limiter
local function limiting()
  if limiter then return limiter end

  -- A level as it is kept; no limit: 0.
  local function stored(x, depth) return depth > 0 and tonumber(string.format('%.6f', math.min(depth, x))) or 0 end

  -- Its levels now, what it has in flight, and for how long its refused clients were told to wait.
  local function read_limit(l, now)
    local v = call('HMGET', LIMIT .. l.name, 'r', 't', 'at', 'told')
    local at = tonumber(v[3]) or now
    l.known = v[3]
    l.r = refill(tonumber(v[1]) or l.requests, at, l.requests / 60, l.requests, now)
    l.t = refill(tonumber(v[2]) or l.tokens, at, l.tokens / 60, l.tokens, now)
    l.told = math.min(MAX_TOLD_MS, math.max(0, (tonumber(v[4]) or 0) - now))
    l.using = l.concurrency > 0 and tonumber(call('HGET', USING, l.name)) or 0
  end

  -- Of the record of a request that is in flight or comes; nothing: it has no limits. Users beyond those that are tracked
  -- count as one.
  local function at(record, now)
    local limits = limits_of(record)
    for _, l in ipairs(limits or {}) do
      l.owner = string.match(l.name, '^[^:]+')
      l.user = string.find(l.name, '^[^:]+:u')
      read_limit(l, now)
    end
    return limits
  end

  -- A user beyond the tracked ones counts as one of the rest. -> the record, with that in it
  local function place_users(limits, record, now)
    local words
    local more = 0  -- of this request: the user of its key and that of its project are two
    for _, l in ipairs(limits) do
      if l.user and (tonumber(call('ZSCORE', USERS .. l.owner, l.name)) or 0) <= now then
        if call('ZCOUNT', USERS .. l.owner, '(' .. now, '+inf') + more >= USERS_TRACKED then
          l.name = string.match(l.name, '^(.*):[^:]*$') .. ':-'
          read_limit(l, now)
          words = true
        elseif string.sub(l.name, -2) ~= ':-' then
          more = more + 1
        end
      end
    end
    if not words then return record end
    words = {tostring(limits.charge)}
    for _, l in ipairs(limits) do
      words[#words + 1] = string.format('%s=%d,%d,%d', l.name, l.requests, l.tokens, l.concurrency)
    end
    return with_limits(record, table.concat(words, ' '))
  end

  -- `kept_ms` in Python: for how long a scope differs from an unused one.
  local function keep_limit(l, now)
    local ms = 60000
    if l.requests > 0 then ms = math.max(ms, math.ceil((1 - l.r / l.requests) * 60000)) end
    if l.tokens > 0 then ms = math.max(ms, math.ceil((1 - l.t / l.tokens) * 60000)) end
    ms = math.min(LIMITS_KEPT_MS, ms)
    call('HSET', LIMIT .. l.name, 'r', string.format('%.6f', l.r), 't', string.format('%.6f', l.t), 'at', now)
    call('PEXPIRE', LIMIT .. l.name, ms)
    if l.user and string.sub(l.name, -2) ~= ':-' then
      call('ZREMRANGEBYSCORE', USERS .. l.owner, '-inf', now)
      call('ZADD', USERS .. l.owner, now + ms, l.name)
      call('PEXPIRE', USERS .. l.owner, ms)
    end
  end

  -- One more request of these scopes. What it has in flight is counted with its totals (`count_limits`).
  local function take(limits, now)
    for _, l in ipairs(limits) do
      l.r, l.t, l.using = stored(l.r - 1, l.requests), stored(l.t - limits.charge, l.tokens), l.using + 1
      keep_limit(l, now)
    end
  end

  -- A request ended: replaces its charge by its use (false: not known, the charge stands). One that never ran does not count.
  local function settle_all(x, actual, ran, now)
    local limits = at(x.record, now)
    for _, l in ipairs(limits or {}) do
      if l.known then  -- else it is full
        l.r = stored(l.r + (ran and 0 or 1), l.requests)
        l.t = stored(l.t + limits.charge - (actual or limits.charge), l.tokens)
        keep_limit(l, now)
      end
    end
  end

  -- `first_over` in Python. -> the scope, what of it, ms until it would pass (false: never), and between such requests
  local function over(limits, service_ms)
    for i, l in ipairs(limits) do
      if l.requests > 0 and l.r < 1 then
        local every = 60000 / l.requests
        return i, 'requests', (1 - l.r) * every, every
      elseif l.tokens > 0 and limits.charge > l.t then
        return i, 'tokens', limits.charge <= l.tokens and (limits.charge - l.t) / l.tokens * 60000,
          limits.charge / l.tokens * 60000
      elseif l.concurrency > 0 and l.using >= l.concurrency then
        return i, 'concurrency', service_ms / l.concurrency, service_ms / l.concurrency
      end
    end
  end

  -- Its refused clients come back one after the other.
  local function tell(l, ms, now)
    call('HSET', LIMIT .. l.name, 'told', now + ms)
    ms = math.max(60000, ms)
    if call('PTTL', LIMIT .. l.name) < ms then call('PEXPIRE', LIMIT .. l.name, ms) end
  end

  -- What an answer tells of them: levels and requests in flight by scope; nothing of those who count as one.
  local function said_of(limits)
    local said = {}
    for i, l in ipairs(limits) do
      local rest = l.user and string.sub(l.name, -2) == ':-'
      said[i] = rest and '- - -' or string.format('%s %s %s', l.requests > 0 and string.format('%.6f', l.r) or '-',
        l.tokens > 0 and string.format('%.6f', l.t) or '-', l.concurrency > 0 and string.format('%d', l.using) or '-')
    end
    return table.concat(said, ';')
  end

  limiter = {at = at, place_users = place_users, take = take, settles = settle_all, over = over, tell = tell, said = said_of}
  return limiter
end

local function limits_at(record, now)
  return is_limited(record) and limiting().at(record, now) or nil
end

local function settle_limits(x, actual, ran, now)
  if is_limited(x.record) then limiting().settles(x, actual, ran, now) end
end
