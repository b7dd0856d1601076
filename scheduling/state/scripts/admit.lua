-- Admit, queue or refuse: the rule of scheduling/core/admission/rule.py. A refusal changes nothing but the retry time of
-- the next one.
-- id attempt ent class kv charge work bytes gateway record r_e rate depth kv_share exclude rights rules headroom prefill
-- pace
-- rights, each 0 or 1: waits_over reserved bursts over_budget evicts baseline supersedes
-- rules: first_weight threshold queue_limit pool_queue_limit pool_queue_bytes
-- -> {granted|queued|refused|ended, backend or reason (queued: ms until a replica is awake), position or retry_ms,
-- inflight, level, seq, attempt, prefill credit held}; with limits of a key or user in the record: their levels
-- (`said`), and which of them refused the request
local id, ent, exclude, attempt = ARGV[1], ARGV[3], ARGV[15], tonumber(ARGV[2])
local kv, charge, bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local r_e, rate, depth = tonumber(ARGV[11]), tonumber(ARGV[12]), tonumber(ARGV[13])
local waits_over, reserved, bursts, over_budget, evicts, has_baseline, supersedes = string.byte(ARGV[16], 1, 7)
waits_over, reserved, bursts, has_baseline = waits_over == 49, reserved == 49, bursts == 49, has_baseline == 49  -- 49: a 1
local pre = tonumber(ARGV[19])
local now = now_ms()

local ready, v = survey(ent)
local waiting, able, ent_run, ent_wait = v[2], v[4], v[5], v[6]
local inflight = ent_run + ent_wait

local level = depth
if rate > 0 then
  local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at')
  if b[1] then level = level_now(b[1], b[2], rate, depth, now) or depth end
end

local limits, exceeded
local function answer(status, what, figure, seq, attempt, held)
  local said = {status, what, figure, inflight, rate > 0 and string.format('%.6f', level) or '', seq, attempt, held or 0}
  if limits then said[9], said[10] = limiting().said(limits), exceeded or '' end
  return said
end

local known = call('HGET', HELD, id)
if known then
  local x = parse(known)
  if not x then return answer('ended', 'internal', -1, 0, attempt) end
  limits = limits_at(x.record, now)
  return answer('granted', x.backend, 0, x.seq, x.attempt, x.pre)
end
known = call('HGET', QUEUE, id)
if known then
  local x = parse(known)
  if not x then return answer('ended', 'internal', -1, 0, attempt) end
  limits = limits_at(x.record, now)
  return answer('queued', '', waiting, x.seq, x.attempt)
end
known = ended(id)
if known then return answer('ended', known, -1, 0, attempt) end

if waiting > 0 and hand_out(now) then  -- without a leader: waiting requests go first
  ready, v = survey(ent)
  waiting, able, ent_run, ent_wait = v[2], v[4], v[5], v[6]
  inflight = ent_run + ent_wait
end
local m = able > 0 and call('HMGET', META, 'rebuild_until', 'kept', 'stuck') or call('HMGET', META, 'rebuild_until', 'kept')
local headroom = tonumber(m[2]) or tonumber(ARGV[18])
local waking = #ready == 0 and call('HGET', META, 'waking')

local sequences = sequences_of(ARGV[10])
local function refuse(reason, ms)
  return answer('refused', reason, ms and math.max(MIN_RETRY_MS, ms) or -1, 0, attempt)
end

local rebuilding = m[1] and tonumber(m[1]) - now or 0
if rebuilding > 0 then return refuse('rebuilding', rebuilding) end
if #ready == 0 and not waking then return refuse('no_backend', NO_BACKEND_RETRY_MS) end
local homes, loads, has = homes_of(ARGV[10]), false, false
if homes then
  loads = may_load(homes)
  for i = 1, #ready, 2 do has = has or serves(homes, ready[i]) end
  if not has and not loads then return refuse('no_adapter', NO_BACKEND_RETRY_MS) end
end

local record = tail_of(ARGV[10])
limits = limits_at(record, now)
if limits then
  record = limiting().place_users(limits, record, now)
  local over, what, first_ms, every_ms = limiting().over(limits, times_of(ent, inflight, sequences).service)
  if over then
    local l = limits[over]
    local reason = l.user and 'user_limit' or 'key_limit'
    exceeded = over .. ' ' .. what
    if not first_ms then return refuse(reason) end
    limiting().tell(l, math.min(MAX_TOLD_MS, l.told + math.ceil(every_ms * SERVED_PER_RETURN)), now)
    return refuse(reason, math.ceil(first_ms + l.told))
  end
end

local within = inflight < r_e
local protected, based = reserved and within, has_baseline and within
local backend, at, slots, free, roomy, credit, cold, waits =
  choose(ready, v, kv, exclude, pre, ARGV[10], protected, homes, tonumber(ARGV[20]))
roomy = roomy or loads and cold  -- one that would have room once it has loaded the adapter: it waits for that
local going = math.max(0, able - (tonumber(m[3]) or 0))
local first = (protected or based and headroom > 0) and v[9] or going
local left = free - (based and 0 or headroom)
local contended = not roomy or left <= (has_baseline and v[9] or going)
local may_burst = bursts and not contended

-- The request that is refused in the place of this one, and after how long it should return.
supersedes = supersedes == 49
local missed, first_ms
if not within and not may_burst and not waits_over then
  local t = times_of(ent, inflight, sequences)
  first_ms = every(r_e, t.service, sequences)
  missed = supersedes and missed_deadline(ent, now)
  if not missed then return refuse('concurrency', come_back(ent, t.last, now, first_ms, t.served)) end
  protected = reserved
end
if rate > 0 and charge > level then
  if contended or left <= first or over_budget ~= 49 then
    if charge > depth then return refuse('token_budget') end
    local t = times_of(ent, inflight, sequences)
    local every_ms = ent_run > 0 and t.served or charge / rate * 1000
    return refuse('token_budget', come_back(ent, t.last, now, (charge - level) / rate * 1000, every_ms))
  end
  charge = 0
end
local share = tonumber(ARGV[14])
if share > 0 and v[7] - (missed and missed.x.kv or 0) + kv > share and not may_burst then
  if kv > share then return refuse('kv_budget') end
  local t = times_of(ent, inflight, sequences)
  return refuse('kv_budget', come_back(ent, t.last, now, t.served, t.served))
end
if contended and not protected and not waits_over and outranked(ent, ARGV[17]) then
  local t = times_of(ent, inflight, sequences)
  return refuse('low_priority', come_back(ent, t.last, now, pool_service() / math.max(1, slots), t.served))
end

-- `goes_at_once` in Python: free slots are enough for the requests that go first as well; a prefill credit may not be.
local direct = not contended and left > first and (within or bursts) and backend and (credit == 0 or first == 0)
  and not beside_long(backend, credit, v[at + 3], pre)
local queue_full, pool_full
if not direct or waits then
  local one, size = missed and 1 or 0, missed and missed.x.bytes or 0
  queue_full = ent_wait - one >= queue_limit(ARGV[17])
  pool_full = no_place(waiting - one, v[3] - size, bytes, ARGV[17], based)
end
if direct and waits and (protected or not (queue_full or pool_full)) then
  local _, decides = led(now)
  direct = not decides
end
local evicting = not roomy and within and evicts == 49 and (reserved or able == 0)
local used
if evicting then backend, credit, used = make_room(ready, v, kv, exclude, pre, now, protected, homes) end
evicting = evicting and backend
if not direct and not evicting and not protected then
  if queue_full then
    local superseded = not missed and supersedes and missed_deadline(ent, now)
    local t = times_of(ent, inflight, sequences)
    first_ms = math.max(1, ent_wait) * every(math.min(r_e, slots), t.service, sequences)
    if not superseded then return refuse('queue_full', come_back(ent, t.last, now, first_ms, t.served)) end
    missed = superseded
    pool_full = no_place(waiting - 1, v[3] - missed.x.bytes, bytes, ARGV[17], based)
  end
  if pool_full then
    local t, ms = times_of(ent, inflight, sequences), math.max(1, waiting) * pool_service() / math.max(1, slots)
    return refuse('queue_full', come_back(ent, t.last, now, ms, t.served))
  end
end

local cap, base = not bursts and r_e, has_baseline and r_e > 0 and r_e
local sums = {}
set_limits(ent, ent_wait, ent_run, v[8], cap, v[10], base, sums)
if #sums > 0 and (evicting or not direct) then call('HSET', TOTALS, unpack(sums)) end
if inflight == 0 then call('ZADD', WEIGHTS, weight_of(ent, string.match(ARGV[17], '^%S+')), ent) end
local seq = call('HINCRBY', META, 'seq', 1)
if rate > 0 then
  level = level - charge
  set_level(ent, level, now, ARGV[12], ARGV[13])
end
local x = {  -- what is only written is left as it came
  attempt = ARGV[2], ent = ent, class = ARGV[4], backend = '-', kv = ARGV[5], charge = charge, work = ARGV[7],
  bytes = ARGV[8], queued = '0', granted = '0', gateway = ARGV[9], seq = seq, served = '0', note = '-', pre = pre,
  record = record,
}
if limits then limiting().take(limits, now) end
if evicting then
  x.backend, x.granted, x.note = backend, now, 'direct'
  charge_prefill(id, x, credit, used, now, believed(backend, pre, record))
  put_lease(id, x, now + LEASE_MS)
  inflight = inflight + sequences
  return answer('granted', backend, 0, seq, attempt, x.pre)
end
if direct then
  x.backend, x.granted, x.note = backend, now, 'direct'
  charge_prefill(id, x, credit, v[at + 3], now, believed(backend, pre, record))
  keep_lease(id, x, now + LEASE_MS)
  local e, t = 'e:' .. ent, 'b:' .. backend
  local n, work = #sums, tonumber(x.work)
  sums[n + 1], sums[n + 2], sums[n + 3], sums[n + 4], sums[n + 5], sums[n + 6] =
    'run', v[1] + 1, e .. ':run', ent_run + sequences, t .. ':run', v[at] + sequences
  n = n + 6
  if kv > 0 then
    sums[n + 1], sums[n + 2], sums[n + 3], sums[n + 4] = e .. ':kv', v[7] + kv, t .. ':kv', v[at + 1] + kv
    n = n + 4
  end
  if work > 0 then
    sums[n + 1], sums[n + 2] = t .. ':work', v[at + 2] + work
    n = n + 2
  end
  if x.pre > 0 then
    sums[n + 1], sums[n + 2] = t .. ':pre', v[at + 3] + x.pre
    if reserves(x.class) then sums[n + 3], sums[n + 4] = t .. ':own', v[at + 4] + x.pre end
  end
  call('HSET', TOTALS, unpack(sums))
  if limits then count_limits(record, 1) end
  if ent_wait > 0 then  -- where it goes past its own
    shift('able', able_of(ent_wait, ent_run + sequences, cap) - able_of(ent_wait, ent_run, cap))
    shift('due', due_of(ent_wait, ent_run + sequences, base) - due_of(ent_wait, ent_run, base))
  end
  inflight = inflight + sequences
  return answer('granted', backend, 0, seq, attempt, x.pre)
end
if not missed and not within and not waits_over then  -- it keeps no more waiting than can be in time
  missed = supersedes and missed_deadline(ent, now)
  first_ms = missed and every(r_e, times_of(ent, inflight, sequences).service, sequences)
end
local t = missed and times_of(ent, inflight, sequences)  -- as of before it waits
x.queued = now
put_waiting(id, x, now)
inflight, waiting = inflight + 1, waiting + 1
if missed then
  supersede(missed.id, missed.x, now, math.max(MIN_RETRY_MS, come_back(ent, t.last, now, first_ms, t.served)))
  inflight, waiting = inflight - 1, waiting - 1
end
call('HSET', META, 'headroom', headroom)  -- for hand-outs while there is no leader
return answer('queued', waking or '', waiting, seq, attempt)
