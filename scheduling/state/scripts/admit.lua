-- Admit, queue or refuse: the rule of scheduling/core/admission/rule.py. A refusal changes nothing but the retry time of
-- the next one.
-- id attempt ent class kv charge work bytes gateway record r_e waits_over queue_limit rate depth kv_share first_weight
-- threshold pool_queue_limit pool_queue_bytes exclude reserved bursts over_budget evicts baseline headroom prefill
-- pace; and for who supersedes nobody: -
-- -> {granted|queued|refused|ended, backend or reason (queued: ms until a replica is awake), position or retry_ms,
-- inflight, level, seq, attempt, prefill credit held}; with limits of a key or user in the record: their levels
-- (`said`), and which of them refused the request
local id, ent, exclude = ARGV[1], ARGV[3], ARGV[21]
local kv, charge, bytes = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[8])
local r_e, rate, depth = tonumber(ARGV[11]), tonumber(ARGV[14]), tonumber(ARGV[15])
local waits_over, reserved, bursts = ARGV[12] == '1', ARGV[22] == '1', ARGV[23] == '1'
local supersedes = ARGV[30] ~= '-'
local has_baseline, pre = ARGV[26] == '1', tonumber(ARGV[28])
local now = now_ms()

local ready, v = survey(ent)
local waiting, able, ent_run, ent_wait = v[2], v[4], v[5], v[6]
local inflight = ent_run + ent_wait

local b = call('HMGET', BUCKETS, ent .. ':level', ent .. ':at', ent .. ':service_ms', ent .. ':told',
  ent .. ':stay_ms')
local level = depth
if b[1] then level = level_now(b[1], b[2], rate, depth, now) or depth end

local limits, exceeded
local function answer(status, what, figure, seq, attempt, held)
  local said = {status, what, figure, inflight, rate > 0 and string.format('%.6f', level) or '', seq, attempt, held or 0}
  if limits then said[9], said[10] = limiting().said(limits), exceeded or '' end
  return said
end

local known = call('HGET', HELD, id)
if known then
  local x = parse(known)
  if not x then return answer('ended', 'internal', -1, 0, tonumber(ARGV[2])) end
  limits = limits_at(x.record, now)
  return answer('granted', x.backend, 0, x.seq, x.attempt, x.pre)
end
known = call('HGET', QUEUE, id)
if known then
  local x = parse(known)
  if not x then return answer('ended', 'internal', -1, 0, tonumber(ARGV[2])) end
  limits = limits_at(x.record, now)
  return answer('queued', '', waiting, x.seq, x.attempt)
end
known = ended(id)
if known then return answer('ended', known, -1, 0, tonumber(ARGV[2])) end

if waiting > 0 and hand_out(now) then  -- without a leader: waiting requests go first
  ready, v = survey(ent)
  waiting, able, ent_run, ent_wait = v[2], v[4], v[5], v[6]
  inflight = ent_run + ent_wait
end
local m = call('HMGET', META, 'rebuild_until', 'service_ms', 'stuck', 'kept', 'waking')
local headroom = tonumber(m[4]) or tonumber(ARGV[27])
local service = tonumber(m[2]) or SERVICE_MS
local ent_service = tonumber(b[3]) or SERVICE_MS

local function wait(reason, ms)
  return answer('refused', reason, math.max(MIN_RETRY_MS, ms), 0, tonumber(ARGV[2]))
end

-- Refused clients are told to come back one after the other: `come_back` in Python.
-- `served_every_ms` in Python: a request of several sequences takes as many places.
local sequences = sequences_of(ARGV[10])
local function every(places, ms) return math.min(ms, ms / math.max(1, places) * sequences) end
local served_ms = every(inflight, tonumber(b[5]) or ent_service)
local function come_back(first_ms, every_ms)
  local told = math.min(MAX_TOLD_MS, math.max(0, (tonumber(b[4]) or 0) - now))
  local next_told = math.min(MAX_TOLD_MS, told + math.ceil((every_ms or served_ms) * SERVED_PER_RETURN))
  call('HSET', BUCKETS, ent .. ':told', now + next_told)
  return math.ceil(first_ms + told)
end
local function refuse(reason, first_ms, every_ms)
  if not first_ms then return answer('refused', reason, -1, 0, tonumber(ARGV[2])) end
  return wait(reason, come_back(first_ms, every_ms))
end

-- Others go first: the weight is under the pool's own threshold, or it is the lightest of several in flight.
local function outranked()
  local weight = tonumber(weight_of(ent, ARGV[17]))
  if weight <= tonumber(ARGV[18]) then return true end
  local low = call('ZRANGE', WEIGHTS, 0, 0, 'WITHSCORES')
  if not low[2] or weight > tonumber(low[2]) then return false end
  return weight < tonumber(call('ZREVRANGE', WEIGHTS, 0, 0, 'WITHSCORES')[2])
end

local rebuilding = m[1] and tonumber(m[1]) - now or 0
if rebuilding > 0 then return wait('rebuilding', rebuilding) end
if #ready == 0 and not m[5] then return wait('no_backend', NO_BACKEND_RETRY_MS) end
local homes, loads, has = homes_of(ARGV[10]), false, false
if homes then
  loads = may_load(homes)
  for i = 1, #ready, 2 do has = has or serves(homes, ready[i]) end
  if not has and not loads then return wait('no_adapter', NO_BACKEND_RETRY_MS) end
end

local record = tail_of(ARGV[10])
limits = limits_at(record, now)
if limits then
  record = limiting().place_users(limits, record, now)
  local over, what, first_ms, every_ms = limiting().over(limits, ent_service)
  if over then
    local l = limits[over]
    local reason = l.user and 'user_limit' or 'key_limit'
    exceeded = over .. ' ' .. what
    if not first_ms then return answer('refused', reason, -1, 0, tonumber(ARGV[2])) end
    limiting().tell(l, math.min(MAX_TOLD_MS, l.told + math.ceil(every_ms * SERVED_PER_RETURN)), now)
    return wait(reason, math.ceil(first_ms + l.told))
  end
end

local within = inflight < r_e
local protected, based = reserved and within, has_baseline and within
local backend, at, slots, free, roomy, credit, cold, waits =
  choose(ready, v, kv, exclude, pre, ARGV[10], protected, homes, tonumber(ARGV[29]))
roomy = roomy or loads and cold  -- one that would have room once it has loaded the adapter: it waits for that
local going = math.max(0, able - (tonumber(m[3]) or 0))
local first = (protected or based and headroom > 0) and v[9] or going
local left = free - (based and 0 or headroom)
local contended = not roomy or left <= (has_baseline and v[9] or going)
local may_burst = bursts and not contended

-- The request that is refused in the place of this one, and after how long it should return.
local missed, first_ms
if not within and not may_burst and not waits_over then
  first_ms = every(r_e, ent_service)
  missed = supersedes and missed_deadline(ent, now)
  if not missed then return refuse('concurrency', first_ms) end
  protected = reserved
end
if rate > 0 and charge > level then
  if contended or left <= first or ARGV[24] == '0' then
    local every_ms = ent_run > 0 and served_ms or charge / rate * 1000
    return refuse('token_budget', charge <= depth and (charge - level) / rate * 1000, every_ms)
  end
  charge = 0
end
local share = tonumber(ARGV[16])
if share > 0 and v[7] - (missed and missed.x.kv or 0) + kv > share and not may_burst then
  return refuse('kv_budget', kv <= share and served_ms)
end
if contended and not protected and not waits_over and outranked() then
  return refuse('low_priority', service / math.max(1, slots))
end

-- `goes_at_once` in Python: free slots are enough for the requests that go first as well; a prefill credit may not be.
local direct = not contended and left > first and (within or bursts) and backend and (credit == 0 or first == 0)
  and not beside_long(backend, credit, v[at + 3], pre)
local function no_place()
  local n, size = waiting, v[3]
  if missed then n, size = n - 1, size - missed.x.bytes end
  local places, room = tonumber(ARGV[19]), tonumber(ARGV[20])
  if based then
    places, room = places + math.floor(places / EXTRA_PLACES), room + math.floor(room / EXTRA_PLACES)
  end
  return n >= places or size + bytes > room
end
local queue_full, pool_full = ent_wait - (missed and 1 or 0) >= tonumber(ARGV[13]), no_place()
if direct and waits and (protected or not (queue_full or pool_full)) then
  local _, decides = led(now)
  direct = not decides
end
local evicting = not roomy and within and ARGV[25] == '1' and (reserved or able == 0)
local used
if evicting then backend, credit, used = make_room(ready, v, kv, exclude, pre, now, protected, homes) end
evicting = evicting and backend
if not direct and not evicting and not protected then
  if queue_full then
    local superseded = not missed and supersedes and missed_deadline(ent, now)
    first_ms = math.max(1, ent_wait) * every(math.min(r_e, slots), ent_service)
    if not superseded then return refuse('queue_full', first_ms) end
    missed = superseded
    pool_full = no_place()
  end
  if pool_full then
    return refuse('queue_full', math.max(1, waiting) * service / math.max(1, slots))
  end
end

local cap, base = not bursts and r_e, has_baseline and r_e > 0 and r_e
set_limits(ent, ent_wait, ent_run, v[8], cap, v[10], base)
if inflight == 0 then call('ZADD', WEIGHTS, weight_of(ent, ARGV[17]), ent) end
local seq = call('HINCRBY', META, 'seq', 1)
if rate > 0 then
  level = level - charge
  set_level(ent, level, now, ARGV[14], ARGV[15])
end
local x = {
  attempt = tonumber(ARGV[2]), ent = ent, class = ARGV[4], backend = '-', kv = kv, charge = charge,
  work = tonumber(ARGV[7]), bytes = bytes, queued = 0, granted = 0, gateway = ARGV[9], seq = seq, served = 0, note = '-',
  pre = pre, record = record,
}
if limits then limiting().take(limits, now) end
if evicting then
  x.backend, x.granted, x.note = backend, now, 'direct'
  charge_prefill(id, x, credit, used, now, believed(backend, pre, record))
  put_lease(id, x, now + LEASE_MS)
  inflight = inflight + sequences
  return answer('granted', backend, 0, seq, x.attempt, x.pre)
end
if direct then
  x.backend, x.granted, x.note = backend, now, 'direct'
  charge_prefill(id, x, credit, v[at + 3], now, believed(backend, pre, record))
  keep_lease(id, x, now + LEASE_MS)
  local e, t = 'e:' .. ent, 'b:' .. backend
  local sums = {'run', v[1] + 1, e .. ':run', ent_run + sequences, t .. ':run', v[at] + sequences}
  local n = 6
  if kv > 0 then
    sums[n + 1], sums[n + 2], sums[n + 3], sums[n + 4] = e .. ':kv', v[7] + kv, t .. ':kv', v[at + 1] + kv
    n = n + 4
  end
  if x.work > 0 then
    sums[n + 1], sums[n + 2] = t .. ':work', v[at + 2] + x.work
    n = n + 2
  end
  if x.pre > 0 then
    sums[n + 1], sums[n + 2] = t .. ':pre', v[at + 3] + x.pre
    if reserves(x.class) then sums[n + 3], sums[n + 4] = t .. ':own', v[at + 4] + x.pre end
  end
  call('HSET', TOTALS, unpack(sums))
  if limits then count_limits(record, 1) end
  -- where it goes past its own
  shift('able', able_of(ent_wait, ent_run + sequences, cap) - able_of(ent_wait, ent_run, cap))
  shift('due', due_of(ent_wait, ent_run + sequences, base) - due_of(ent_wait, ent_run, base))
  inflight = inflight + sequences
  return answer('granted', backend, 0, seq, x.attempt, x.pre)
end
if not missed and not within and not waits_over then  -- it keeps no more waiting than can be in time
  missed, first_ms = supersedes and missed_deadline(ent, now), every(r_e, ent_service)
end
x.queued = now
put_waiting(id, x, now)
inflight, waiting = inflight + 1, waiting + 1
if missed then
  supersede(missed.id, missed.x, now, math.max(MIN_RETRY_MS, come_back(first_ms)))
  inflight, waiting = inflight - 1, waiting - 1
end
call('HSET', META, 'headroom', headroom)  -- for hand-outs while there is no leader
return answer('queued', #ready == 0 and m[5] or '', waiting, seq, x.attempt)
