-- What every script of a pool shares. KEYS[1] is the pool's prefix, `qm:{<pool>}:`: all its keys have one hash tag.
local P = KEYS[1]
local META, READY, TOTALS, BUCKETS = P .. 'meta', P .. 'ready', P .. 'totals', P .. 'buckets'
local LEASES, HELD, WAITING, QUEUE = P .. 'leases', P .. 'held', P .. 'waiting', P .. 'queue'
local EVENTS, LEDGER, UNREAD = P .. 'events', P .. 'ledger', P .. 'ledger:unread'
local STANDING, WEIGHTS, METER = P .. 'standing', P .. 'weights', P .. 'meter'
local PREY, EVICTED, LEAVING = P .. 'prey', P .. 'evicted', P .. 'leaving'
local ORDER, PREFILLS, CREDITS = P .. 'order', P .. 'prefills', P .. 'credits'
local WARM, WARM_BEFORE = P .. 'warm', P .. 'warm:before'
local call = redis.call

-- A Redis that is out of memory refuses a script whose first write could need more of it. What has to go on then begins
-- with a write that does not: leaders, who move the ledger out; renewals, or all that runs would end; the sweep.
local function even_when_full() call('HDEL', META, '') end

-- Tokens as a gateway tells them, or false for what no request can have used. Asked for before anything is written: a
-- script that fails half-way leaves a request without an end.
local function tokens(word)
  local n = tonumber(word)
  return n and n >= 0 and n <= MAX_USED and n == math.floor(n) and n
end

-- An entry: fourteen words and the record, which begins with the format and what it takes of a prefill credit
-- (scheduling/state/codec.py). Before format 3 it took none; of format 1 it has neither class nor served.
local HEAD = '{"v":' .. ENTRY_FORMAT .. ',"pre":'
local BEFORE_RECORD = '(%d+) (%S+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%S+) '
local WORDS_3 = '^' .. BEFORE_RECORD .. HEAD .. '(%d+),(.*)$'
local WHOLE = '"streamed":false'
local WORDS = '^' .. BEFORE_RECORD .. '({.*)$'
local WORDS_1 = '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%S+) ({.*)$'

-- Nothing for what is of a newer format, or no entry: ask before anything is written.
local function parse(text)
  local a, e, cl, b, kv, c, w, by, q, g, gw, s, u, n, pre, r = string.match(text, WORDS_3)
  if not a then
    a, e, cl, b, kv, c, w, by, q, g, gw, s, u, n, r = string.match(text, WORDS)
    if not a then
      a, e, b, kv, c, w, by, q, g, gw, s, n, r = string.match(text, WORDS_1)
      cl, u = '-', 0
    end
    if not a or tonumber(string.match(r, '^{"v":(%d+)') or 1) > ENTRY_FORMAT then return nil end
    pre = b == '-' and string.match(r, '"input_tokens":(%d+)') or 0
    r = string.match(r, '^{"v":%d+,(.*)$') or string.sub(r, 2)
  end
  return {
    attempt = tonumber(a), ent = e, class = cl, backend = b, kv = tonumber(kv), charge = tonumber(c), work = tonumber(w),
    bytes = tonumber(by), queued = q, granted = tonumber(g), gateway = gw, seq = tonumber(s), served = tonumber(u),
    note = n, pre = tonumber(pre), record = r,
  }
end

-- What follows the head of a record that a gateway wrote.
local function tail_of(record)
  return string.match(record, '^{"v":%d+,"pre":%d+,(.*)$')
end

-- The offer of a replica: slots, KV tokens and prefill credit (0: no bound). Before format 3 it had no credit.
local function offered(words)
  local s, k, c = string.match(words or '0 0', '^(%d+) (%d+) ?(%d*)$')
  return tonumber(s), tonumber(k), tonumber(c) or 0
end

-- The ready replicas, each with its offer: `slots kv credit`. Credits have a hash of their own, as trees that know none
-- read two words of `ready`.
local function offers()
  local ready, flat, credits = call('HGETALL', READY), call('HGETALL', CREDITS), {}
  for i = 1, #flat, 2 do credits[flat[i]] = flat[i + 1] end
  for i = 1, #ready, 2 do ready[i + 1] = ready[i + 1] .. ' ' .. (credits[ready[i]] or '0') end
  return ready
end

-- `prefill_fits` in Python: room for a prompt beside those that count (`ahead`): whose first token has not come and is
-- not predicted to come by then.
local function prefill_fits(credit, ahead, need)
  return credit == 0 or ahead == 0 or ahead + need <= credit
end

-- `PrefillPace` in Python (scheduling/core/prefill_pace.py): what is left to prefill, predicted. In `credits` under
-- `<replica> pace`: left at sure ms tokens last; under `<replica> step` its step budget, under ` turnaround` [ms].
local paces = {}
local function pace_of(backend)
  local p = paces[backend]
  if p then return p end
  local v = call('HMGET', CREDITS, backend .. ' pace', backend .. ' step', ' turnaround')
  local left, at, sure, ms, tokens, last = string.match(v[1] or '', '^(%S+) (%S+) (%S+) (%S+) (%S+) (%S+)$')
  p = {
    left = tonumber(left) or 0, at = tonumber(at) or 0, sure = tonumber(sure) or 0, ms = tonumber(ms) or 0,
    tokens = tonumber(tokens) or 0, last = tonumber(last) or 0, step = math.max(1, tonumber(v[2]) or USUAL_BUDGET),
    turnaround = tonumber(v[3]) or TURNAROUND_MS,
  }
  paces[backend] = p
  return p
end

local function keep_pace(backend, p)
  call('HSET', CREDITS, backend .. ' pace', string.format('%.3f %.0f %.0f %.3f %.3f %.0f', p.left, p.at, p.sure, p.ms,
    p.tokens, p.last))
end

-- As it is kept.
local function kept(x) return tonumber(string.format('%.3f', x)) end

local function per_ms(p) return p.ms > 0 and p.tokens / p.ms or 0 end

local function left_of(p, now) return math.max(0, p.left - per_ms(p) * math.max(0, now - p.at)) end

local function pace_granted(backend, used, need, whole, now)
  local p = pace_of(backend)
  if used == 0 then p.sure = need elseif whole then p.sure = p.sure + need end
  p.left, p.at = kept(math.min(left_of(p, now), used) + need), now
  keep_pace(backend, p)
end

local function pace_told(backend, used, given, granted, now)
  local p = pace_of(backend)
  p.left, p.at, p.sure = kept(math.min(math.max(left_of(p, now), used - p.step), used)), now, used
  p.ms = kept(PREFILL_KEPT * p.ms + math.max(1, now - math.max(p.last, granted)))
  p.tokens, p.last = kept(PREFILL_KEPT * p.tokens + given), now
  keep_pace(backend, p)
end

-- Of the `used` tokens those that count, and in how many ms they are fewer (0: not before a first token comes).
local function ahead_of(backend, used, now)
  if used <= 0 then return 0, 0 end
  local p = pace_of(backend)
  local rate, least = per_ms(p), math.max(0, used - p.sure)
  if rate <= 0 or least >= used then return used, 0 end
  local left, done = math.min(p.left, used), rate * math.max(0, now + p.turnaround - p.at)
  if done >= left then return least, 0 end
  local steps = math.floor(done / p.step)
  local ahead = math.max(least, math.ceil(left - p.step * steps))
  if ahead <= least then return ahead, 0 end
  return ahead, math.max(1, math.ceil((math.min(left, p.step * (steps + 1)) - done) / rate))
end

local function compose(x)
  return string.format(
    '%d %s %s %s %d %d %d %d %.0f %.0f %s %d %d %s %s%d,%s', x.attempt, x.ent, x.class, x.backend, x.kv, x.charge,
    x.work, x.bytes, x.queued, x.granted, x.gateway, x.seq, x.served, x.note, HEAD, x.pre, x.record
  )
end

-- How many of an entitlement's waiting requests could run if slots were free; no cap: it may burst.
local function able_of(wait, run, cap)
  if not cap then return wait end
  return math.max(0, math.min(wait, cap - run))
end

-- And how many of them within its baseline; no base: it has none.
local function due_of(wait, run, base)
  return base and able_of(wait, run, base) or 0
end

-- The sums change by one entry: `run` and `wait` say by how much more it runs and waits. A sum that reaches 0 is
-- deleted. An entitlement of which nothing is left in flight is forgotten, unless it is `staying`.
local function count(x, run, wait, staying)
  local e, b = 'e:' .. x.ent, 'b:' .. x.backend
  local fields = {'able', 'run', 'wait', 'bytes', e .. ':run', e .. ':wait', e .. ':kv', e .. ':cap', b .. ':run',
    b .. ':kv', b .. ':work', 'due', e .. ':base', b .. ':pre'}
  local v = call('HMGET', TOTALS, unpack(fields))
  local ent_run, ent_wait, cap, base = tonumber(v[5]) or 0, tonumber(v[6]) or 0, tonumber(v[8]), tonumber(v[13])
  local able = able_of(ent_wait + wait, ent_run + run, cap) - able_of(ent_wait, ent_run, cap)
  local due = due_of(ent_wait + wait, ent_run + run, base) - due_of(ent_wait, ent_run, base)
  local deltas = {able, run, wait, wait * x.bytes, run, wait, (run + wait) * x.kv, 0, run, run * x.kv, run * x.work,
    due, 0, run * x.pre}
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
  if not staying and ent_run + ent_wait + run + wait == 0 then
    if v[8] then gone[#gone + 1] = fields[8] end
    if v[13] then gone[#gone + 1] = fields[13] end
    call('ZREM', WEIGHTS, x.ent)
  end
  if #set > 0 then call('HSET', TOTALS, unpack(set)) end
  if #gone > 0 then call('HDEL', TOTALS, unpack(gone)) end
end

-- The index of where prompts ran: replicas by point, the last first, in two generations (scheduling/core/placement.py).
-- The points of a record and what is known of each; nil for a request without points. The last answer is kept: whoever
-- chooses a replica by it grants next.
local known_record, known_points
local function points_of(record)
  if record == known_record then return known_points end
  known_record, known_points = record, nil
  local _, at = string.find(record, '"prefixes":"', 1, true)
  local skew, text = string.match(record, '^(%x+):(%x+)"', (at or #record) + 1)
  if not skew then return nil end
  local names, worth = {}, {}
  for i = 1, #text, POINT_CHARS do
    names[#names + 1] = string.sub(text, i, i + NAME_CHARS - 1)
    worth[#worth + 1] = tonumber(string.sub(text, i + NAME_CHARS, i + POINT_CHARS - 1), 16)
  end
  local ran, before, missing = call('HMGET', WARM, unpack(names)), {}, {}
  for i, name in ipairs(names) do
    if not ran[i] then missing[#missing + 1] = name end
  end
  if #missing > 0 then
    local v = call('HMGET', WARM_BEFORE, unpack(missing))
    for i, name in ipairs(missing) do before[name] = v[i] end
  end
  known_points = {skew = tonumber(skew, 16), names = names, worth = worth, ran = ran, before = before}
  return known_points
end

-- A request was granted there: the next one with the same beginning finds it cached.
local function remember_place(x)
  local p = points_of(x.record)
  if not p then return end
  local set = {}
  for i, name in ipairs(p.names) do
    local places, n = x.backend, 1
    for other in string.gmatch(p.ran[i] or p.before[name] or '', '%S+') do
      if other ~= x.backend and n < PLACES_KEPT then places, n = places .. ' ' .. other, n + 1 end
    end
    if places ~= p.ran[i] then set[#set + 1], set[#set + 2] = name, places end
  end
  known_record = nil
  if #set == 0 then return end
  call('HSET', WARM, unpack(set))
  if call('HLEN', WARM) > POINTS_KEPT then
    call('UNLINK', WARM_BEFORE)
    call('RENAME', WARM, WARM_BEFORE)
  end
end

-- Leases and waiting entries exist only together with their totals.
local function keep_lease(id, x, expiry)
  remember_place(x)
  call('ZADD', LEASES, expiry, id)
  call('HSET', HELD, id, compose(x))
  if x.class == 'preemptible' then call('ZADD', PREY, x.granted, id) end
end

-- A lease takes of the prefill credit of its replica, if that has one. Nobody sees the first token of a whole answer:
-- its replica's engine tells of them (`prefilled`). Before the sums are changed.
local function charge_prefill(id, x, credit, used, now)
  if credit == 0 then x.pre = 0 end
  if x.pre == 0 then return end
  local whole = string.find(x.record, WHOLE, 1, true)
  if whole then call('ZADD', PREFILLS, now, id) end
  pace_granted(x.backend, used, x.pre, whole, now)
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

-- An entry that cannot be read leaves no trace; its totals cannot be told, the leader writes them anew.
local function drop_unread(id)
  for _, key in ipairs({LEASES, WAITING, PREY, LEAVING, PREFILLS}) do call('ZREM', key, id) end
  for _, key in ipairs({HELD, QUEUE, EVICTED}) do call('HDEL', key, id) end
end

-- Waiting -> lease. It ends when the waiting entry would have ended.
local function promote(id, x, backend, now, note, credit, used)
  local expiry = call('ZSCORE', WAITING, id) or now + LEASE_MS
  call('ZREM', WAITING, id)
  call('HDEL', QUEUE, id)
  call('ZREM', ORDER, place_of(id, x))
  x.backend, x.granted, x.note = backend, now, note
  charge_prefill(id, x, credit, used, now)
  keep_lease(id, x, expiry)
  count(x, 1, -1)
end

-- What a gateway is told of a grant: the last word says what it takes of a prefill credit.
local function notice(id, x, backend, note, credit)
  return id .. ' ' .. x.attempt .. ' ' .. backend .. ' ' .. note .. ' ' .. (credit > 0 and x.pre or 0)
end

-- A decision made good: waiting -> lease, if replica and entitlement have room, and its gateway, which is told, listens
-- (PUBLISH counts who does). -> ok | full | ent | away
local function grant_waiting(id, x, backend, cap, note, now)
  local offer = call('HGET', READY, backend)
  offer = offer and offer .. ' ' .. (call('HGET', CREDITS, backend) or '0')
  local b = 'b:' .. backend
  local v = call('HMGET', TOTALS, b .. ':run', b .. ':kv', 'e:' .. x.ent .. ':run', b .. ':pre')
  local slots, kv, credit = offered(offer)
  local used = tonumber(v[4]) or 0
  if (tonumber(v[1]) or 0) >= slots or (tonumber(v[2]) or 0) + x.kv > kv then return 'full' end
  if credit > 0 and not prefill_fits(credit, ahead_of(backend, used, now), x.pre) then return 'full' end
  if (tonumber(v[3]) or 0) >= cap then return 'ent' end
  local told = notice(id, x, backend, note, credit)
  if call('PUBLISH', 'qm:gw:' .. x.gateway, told) == 0 then return 'away' end
  promote(id, x, backend, now, note, credit, used)
  return 'ok'
end

-- What an entitlement weighs, as the leader's last tick said; before the first of them, what the caller says.
local function weight_of(ent, first)
  local s = call('HGET', STANDING, ent)
  return s and string.match(s, '^%S+') or first
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

-- An entitlement begins to have something in flight, or its cap or baseline is another now. `able` and `due` follow.
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

-- What a lease holds of a prefill credit is given back: at its first token, or when that must have come. Once: what it
-- holds is 0 then. The rest of the entry is left as it is. -> how much, where, when it was granted, and what is held there
local function give_back(id, text)
  local head, backend, middle, granted, more, pre, record = string.match(
    text, '^(%d+ %S+ %S+ )(%S+)( %d+ %d+ %d+ %d+ %d+ )(%d+)( %S+ %d+ %d+ %S+ )' .. HEAD .. '(%d+)(,.*)$')
  pre = tonumber(pre)
  if not pre or pre == 0 then return 0 end
  call('HSET', HELD, id, head .. backend .. middle .. granted .. more .. HEAD .. '0' .. record)
  local left = shift('b:' .. backend .. ':pre', -pre)
  if string.find(record, WHOLE, 1, true) then call('ZREM', PREFILLS, id) end
  return pre, backend, tonumber(granted), left
end

-- Whole answers that hold prefill credit of a replica and were granted by then, the first first; at most so many of all
-- are looked at.
local function whole_answers(backend, by, most)
  local found = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', PREFILLS, '-inf', by, 'LIMIT', 0, most)) do
    local text = call('HGET', HELD, id)
    if text and string.match(text, '^%S+ %S+ %S+ (%S+)') == backend then found[#found + 1] = {id, text} end
  end
  return found
end

-- Tokens served, in all. A sum that can take no more (only a wrong figure makes it so) begins anew.
local function add_served(ent, more)
  if more == 0 then return end
  local sum = redis.pcall('HINCRBY', METER, ent .. ':served', more)
  if type(sum) == 'table' then call('HSET', METER, ent .. ':served', math.max(0, more)) end
end

local function notify(kind, value)
  call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_KEPT, '*', kind, value)
end

-- A slot became free: of interest only while somebody waits.
local function notify_free(backend)
  if call('HGET', TOTALS, 'wait') then notify('f', backend) end
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

-- A bucket as it is kept, now; false where it is not known whole.
local function level_now(level, at, rate, depth, now)
  level, at, rate, depth = tonumber(level), tonumber(at), tonumber(rate), tonumber(depth)
  return level and at and rate and depth and refill(level, at, rate, depth, now)
end

local function set_level(ent, level, now, rate, depth)
  call('HSET', BUCKETS, ent .. ':level', string.format('%.6f', level), ent .. ':at', now, ent .. ':rate', rate,
    ent .. ':depth', depth)
end

-- charge -> actual. May leave less than nothing.
local function settle(ent, charge, actual, now)
  if charge == 0 then return end
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at', ent .. ':rate', ent .. ':depth')
  local level, depth = level_now(b[1], b[2], b[3], b[4], now), tonumber(b[4])
  if not level then return end
  call('HSET', BUCKETS, ent .. ':level', string.format('%.6f', math.min(depth, level + charge - actual)),
    ent .. ':at', now)
end

local function average(old, new)
  old = old and tonumber(old)
  if old then new = 0.9 * old + 0.1 * new end
  return string.format('%.3f', new)
end

-- How long a slot was occupied, for the retry times of refusals.
local function learn_service(ent, ms)
  call('HSET', META, 'service_ms', average(call('HGET', META, 'service_ms'), ms))
  call('HSET', BUCKETS, ent .. ':service_ms', average(call('HGET', BUCKETS, ent .. ':service_ms'), ms))
end

-- The ready replicas and sums: of the pool, of one entitlement, and of each replica. One read of each hash.
-- {run, wait, bytes, able, run, wait and kv of the entitlement, its cap or false, due, its baseline or false, then run,
-- kv, work and prefill of each replica}
local REPLICAS, SUMS = 11, 4
local function survey(ent)
  local ready = offers()
  local e = 'e:' .. ent
  local fields = {'run', 'wait', 'bytes', 'able', e .. ':run', e .. ':wait', e .. ':kv', e .. ':cap', 'due', e .. ':base'}
  for i = 1, #ready, 2 do
    local b = 'b:' .. ready[i]
    local n = #fields
    fields[n + 1], fields[n + 2], fields[n + 3], fields[n + 4] = b .. ':run', b .. ':kv', b .. ':work', b .. ':pre'
  end
  local v = call('HMGET', TOTALS, unpack(fields))
  local cap, base = tonumber(v[8]), tonumber(v[10])
  for i = 1, #fields do v[i] = tonumber(v[i]) or 0 end
  v[8], v[10] = cap or false, base or false
  return ready, v
end

-- The replica with room that scheduling/core/placement.py names (`place`): the least outstanding work, less what is
-- cached there of the record's prompt, with its place in the survey; the slots of all ready replicas, how many of them
-- are free, whether one has room but for its prefill credit, and the credit of the replica that was chosen. Without a
-- record, or points in it: by outstanding work alone; ties: fewest running, then name.
local function choose(ready, v, kv, exclude, pre, record)
  local fit, credits, least, sum, slots, free, roomy = {}, {}, math.huge, 0, 0, 0, false
  for i = 1, #ready, 2 do
    local name = ready[i]
    local s, k, credit = offered(ready[i + 1])
    slots = slots + s
    local j = REPLICAS + (i - 1) / 2 * SUMS
    local run = v[j]
    free = free + math.max(0, s - run)
    local fits = name ~= exclude and run < s and v[j + 1] + kv <= k
    roomy = roomy or fits
    if fits and (credit == 0 or prefill_fits(credit, ahead_of(name, v[j + 3], now_ms()), pre)) then
      fit[#fit + 1], credits[i] = i, credit
      least, sum = math.min(least, v[j + 2]), sum + v[j + 2]
    end
  end
  local p = #fit > 1 and record and points_of(record)
  local worth = {}  -- to run there, in tokens of outstanding work
  if p then
    for n, name in ipairs(p.names) do
      for replica in string.gmatch(p.ran[n] or p.before[name] or '', '%S+') do worth[replica] = p.worth[n] end
    end
  end
  local most = p and least + math.max(p.skew, sum / #fit) or math.huge
  local best, at, best_run, best_score, best_credit = false, 0, 0, 0, 0
  for _, i in ipairs(fit) do
    local name, j = ready[i], REPLICAS + (i - 1) / 2 * SUMS
    local run, score = v[j], v[j + 2] - (worth[name] or 0)
    if v[j + 2] <= most then
      local better = not best or score < best_score or (score == best_score and run < best_run)
      if not better and score == best_score and run == best_run then
        if p then
          better = redis.sha1hex(p.names[1] .. name) < redis.sha1hex(p.names[1] .. best)
        else
          better = name < best
        end
      end
      if better then
        best, at, best_run, best_score, best_credit = name, j, run, score, credits[i]
      end
    end
  end
  return best, at, slots, free, roomy, best_credit
end

-- Makes room on one ready replica by ending preemptible leases, newest first; -> that replica, its prefill credit and
-- what of it is used then, or false where all of the newest hundred would not do. An evicted request is out of the way
-- at once: its slot and KV are free, its gateway is told, and it has ended. Only its accounts stay open until the
-- gateway says how much it had used (`finish`), or is found dead (`sweep`).
local function make_room(ready, v, kv, exclude, pre, now)
  local ids = call('ZREVRANGE', PREY, 0, 99)
  if #ids == 0 then return false end
  local texts = call('HMGET', HELD, unpack(ids))
  local place = {}
  for i = 1, #ready, 2 do
    if ready[i] ~= exclude then
      local s, k, credit = offered(ready[i + 1])
      local j = REPLICAS + (i - 1) / 2 * SUMS
      local ahead = credit > 0 and ahead_of(ready[i], v[j + 3], now) or 0
      place[ready[i]] = {slots = s, kv = k, credit = credit, run = v[j], used = v[j + 1], pre = v[j + 3],
        ahead = ahead, out = {}}
    end
  end
  for i = 1, #ids do
    local x = texts[i] and parse(texts[i])
    local b = x and place[x.backend]
    if b then
      b.out[#b.out + 1] = {ids[i], x}
      b.run, b.used, b.pre, b.ahead = b.run - 1, b.used - x.kv, b.pre - x.pre, math.max(0, b.ahead - x.pre)
      if b.run < b.slots and b.used + kv <= b.kv and prefill_fits(b.credit, b.ahead, pre) then
        for _, one in ipairs(b.out) do
          local id, y = one[1], one[2]
          drop_lease(id, y)
          call('HSET', EVICTED, id, compose(y))
          call('ZADD', LEAVING, now + LEASE_MS, id)
          call('SET', P .. 'ended:' .. id, 'evicted')  -- until its accounts are closed
          call('PUBLISH', 'qm:gw:' .. y.gateway, id .. ' ' .. y.attempt .. ' - evicted')
        end
        return x.backend, b.credit, b.pre
      end
    end
  end
  return false
end

-- Whether somebody leads: its time is not over, and where its process was heard to listen it still does. What was
-- killed is seen at once by that, what hangs by its time. -> whether somebody leads, and has begun to decide
local function led(now)
  local m = call('HMGET', META, 'leader', 'leader_until', 'leader_listens', 'epoch', 'decides')
  if not m[1] or (tonumber(m[2]) or 0) <= now then return false, false end
  local lives = not m[3] or call('PUBSUB', 'NUMSUB', 'qm:leader:' .. m[1])[2] > 0
  return lives, lives and m[4] == m[5]
end

-- While nobody leads and decides, free slots go to who waits all the same: owners of reserved capacity within it first,
-- then who is within a baseline, then who is within its r_e, then who may burst; within each of these in order of
-- arrival. Scripts that free a slot or hear of who waits do it (`finish`, `admit`, `renew`, `requeue`). -> whether
-- nobody does
-- The work of a call is bounded: so many grants, to so many of the entitlements in flight, the heaviest first, and so
-- many of each that cannot be granted. Those stop nobody else: an entitlement at its cap is passed over whole, a
-- request that nobody listens for leaves the order until it is renewed, and where all of these get nothing the next
-- entitlements are looked at. Nothing happens where leases may have to be announced again.
local BY_NOBODY = 'leaderless|nobody%20leads%20the%20pool:%20by%20class,%20then%20arrival'

local function hand_out(now)
  local _, decides = led(now)
  if decides then return false end
  local m = call('HMGET', META, 'rebuild_until', 'headroom', 'order_from')
  if (tonumber(m[1]) or 0) > now then return true end
  local headroom, from, known = tonumber(m[2]) or 0, tonumber(m[3]) or 0, call('ZCARD', WEIGHTS)
  if from >= known then from = 0 end

  -- The entitlements that may get a slot, each with the first that wait of it.
  local lines, fields = {}, {}
  local names = call('ZREVRANGE', WEIGHTS, from, from + ENTITLEMENTS_AT_ONCE - 1)
  for i, ent in ipairs(names) do
    local e, n = 'e:' .. ent, 4 * i
    fields[n - 3], fields[n - 2], fields[n - 1], fields[n] = e .. ':wait', e .. ':run', e .. ':cap', e .. ':base'
  end
  local t = #names > 0 and call('HMGET', TOTALS, unpack(fields)) or {}
  for i, ent in ipairs(names) do
    local n = 4 * i
    local run, cap = tonumber(t[n - 2]) or 0, tonumber(t[n - 1])
    if able_of(tonumber(t[n - 3]) or 0, run, cap) > 0 then
      local first = call('ZRANGEBYLEX', ORDER, '[' .. ent .. ' ', '(' .. ent .. '!', 'LIMIT', 0,
        GRANTS_AT_ONCE + TRIED_OF_EACH)
      lines[#lines + 1] = {run = run, cap = cap, base = tonumber(t[n]), first = first, at = 1, failed = 0}
    end
  end

  -- Its next request; what does not wait or cannot be read leaves the order (`sweep` ends it).
  local function look(line)
    while not line.x and line.at <= #line.first and line.failed < TRIED_OF_EACH do
      local member = line.first[line.at]
      local seq, id = string.match(member, '^%S+ (%d+) (.*)$')
      local text = id and call('HGET', QUEUE, id)
      line.x, line.id, line.seq, line.member = text and parse(text), id, tonumber(seq), member
      if not line.x then
        call('ZREM', ORDER, member)
        line.at, line.failed = line.at + 1, line.failed + 1
      end
    end
    return line.x
  end

  -- `spared`: what is free is kept for who is within a baseline.
  local function band_of(line, spared)
    if line.base and line.run < line.base then
      return (line.x.class == 'guaranteed' or line.x.class == 'dedicated') and 0 or 1
    end
    if spared then return nil end
    if not line.cap then return 3 end
    return line.run < line.cap and 2 or nil
  end

  local function next_line(spared)
    local best, best_band
    for _, line in ipairs(lines) do
      local band = look(line) and band_of(line, spared)
      if band and (not best or band < best_band or (band == best_band and line.seq < best.seq)) then
        best, best_band = line, band
      end
    end
    return best
  end

  local granted, idle = 0, false
  local ready, v = survey('-')
  while granted < GRANTS_AT_ONCE do
    local _, _, _, free = choose(ready, v, 0, '', 0)
    local line = free > 0 and next_line(free <= headroom)
    if not line then
      idle = free > 0
      break
    end
    local x, said = line.x, 'full'
    local exclude = #ready > 2 and string.match(x.record, '"exclude_backend":"([^"]+)"') or ''
    local backend, _, _, _, roomy = choose(ready, v, x.kv, exclude, x.pre, x.record)
    if (tonumber(call('ZSCORE', WAITING, line.id)) or 0) <= now then
      said = 'away'  -- it is not renewed
    elseif backend then
      said = grant_waiting(line.id, x, backend, line.cap or math.huge, BY_NOBODY, now)
    elseif roomy then
      break  -- it lacks only prefill credit, which comes back within moments: nobody passes it
    end
    if said == 'ok' then
      notify('x', line.id)  -- a leader that comes back has nothing to decide about it
      line.run, granted = line.run + 1, granted + 1
      ready, v = survey('-')
    else
      line.failed = line.failed + 1
      if said == 'away' then call('ZREM', ORDER, line.member) end
    end
    line.at, line.x = line.at + 1, nil
  end

  -- Who waits beside free slots that it cannot use holds up no arrival.
  local stuck = idle and tonumber(call('HGET', TOTALS, 'able')) or 0
  if stuck == 0 then call('HDEL', META, 'stuck') else call('HSET', META, 'stuck', stuck) end
  if idle and granted == 0 and known > ENTITLEMENTS_AT_ONCE then
    call('HSET', META, 'order_from', from + ENTITLEMENTS_AT_ONCE)
  elseif m[3] then
    call('HDEL', META, 'order_from')
  end
  return true
end

-- A slot became free: of interest only while somebody waits.
local function offer_free(backend, now)
  if call('HGET', TOTALS, 'wait') then
    notify('f', backend)
    hand_out(now)
  end
end

-- Leaders write under the pool's epoch. Any other is refused: a lower one was superseded, a higher one means that the
-- state behind it was lost and nobody has been elected since.
local function fenced(epoch)
  return tonumber(call('HGET', META, 'epoch') or -1) ~= tonumber(epoch)
end
