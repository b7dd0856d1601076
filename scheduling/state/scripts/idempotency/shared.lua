-- What the scripts of Idempotency-Key share. KEYS[1] is the tenant's prefix, `qm:idem:{<tenant>}:`.
local P = KEYS[1]
local ENTRIES, RUNNING, DONE, KEPT = P .. 'entries', P .. 'running', P .. 'done', P .. 'kept'
local ANSWERS, BYTES = P .. 'answers', P .. 'bytes'
local call = redis.call

-- An entry: `state request gateway began_ms fingerprint reason`; state is r (running) or d (done).
local function parse(text)
  local s, r, g, b, f, w = string.match(text, '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  return {state = s, request = r, gateway = g, began = tonumber(b), print = f, reason = w}
end

-- An answer exists only together with its place in the order and its share of the sum.
local function drop_answer(key)
  local size = call('HSTRLEN', ANSWERS, key)
  if size > 0 then
    call('HDEL', ANSWERS, key)
    call('ZREM', KEPT, key)
    if call('DECRBY', BYTES, size) <= 0 then call('DEL', BYTES) end
  end
end

local function drop(key)
  call('HDEL', ENTRIES, key)
  call('ZREM', RUNNING, key)
  call('ZREM', DONE, key)
  drop_answer(key)
end

-- Entries whose time is over go, 100 of each kind at a time; what is left of a tenant that stays away goes by itself.
local function tidy(now, kept_ms)
  for _, set in ipairs({RUNNING, DONE}) do
    for _, key in ipairs(call('ZRANGEBYSCORE', set, '-inf', now, 'LIMIT', 0, PURGED)) do drop(key) end
  end
  for _, name in ipairs({ENTRIES, RUNNING, DONE, KEPT, ANSWERS, BYTES, CLOCK}) do
    call('PEXPIRE', name, kept_ms + CLAIM_MS)
  end
end

-- The entry of a key, if its time is not over.
local function find(key, now)
  local text = call('HGET', ENTRIES, key)
  if not text then return nil end
  local x = parse(text)
  local ends = tonumber(call('ZSCORE', x.state == 'r' and RUNNING or DONE, key))
  if ends <= now then
    drop(key)
    return nil
  end
  x.ends = ends
  return x
end

local function put_running(key, print, request, gateway, began, now)
  call('HSET', ENTRIES, key, string.format('r %s %s %.0f %s -', request, gateway, began, print))
  call('ZADD', RUNNING, now + CLAIM_MS, key)
end
