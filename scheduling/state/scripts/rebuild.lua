-- Compares the totals with the entries, and rewrites what differs. Totals change only together with entries, so any
-- difference at one instant is a fault. An entry without an expiry gets one, so that it ends unless it is renewed; an
-- expiry without an entry is removed. An impossible bucket starts full, or is cut to its depth. Caps and baselines
-- stay: every admission sets them. O(leases + queue): some 4 ms for 1,000.
-- epoch -> fenced, or the names of what differed, sorted
if fenced(ARGV[1]) then return 'fenced' end
local now = now_ms()
local differs = {}
local preemptible = {}

local function members(key)
  local found = {}
  for _, name in ipairs(call('ZRANGE', key, 0, -1)) do found[name] = true end
  return found
end

-- Entries and expiries are there in pairs; -> the entries.
local function pairs_of(entries, expiries, name)
  local flat, ends, found = call('HGETALL', entries), members(expiries), {}
  for i = 1, #flat, 2 do
    local id = flat[i]
    found[id] = flat[i + 1]
    if not ends[id] then
      call('ZADD', expiries, now + LEASE_MS, id)
      differs[name] = true
    end
  end
  for id in pairs(ends) do
    if not found[id] then
      call('ZREM', expiries, id)
      differs[name] = true
    end
  end
  return found
end

-- The words of an entry that sums are made of; the record, most of its text, is left alone.
local function figures(text)
  local ent, class, backend, kv, work, bytes, granted, pre, to =
    string.match(text, '^%d+ (%S+) (%S+) (%S+) (%d+) %d+ (%d+) (%d+) %d+ (%d+) %S+ %d+ %d+ %S+ ' .. HEAD .. '(%d+),()')
  if ent then return ent, class, backend, kv, work, bytes, granted, pre, string.match(text, '^' .. UNCOUNTED_POINT, to) end
  local x = parse(text)
  if x then return x.ent, x.class, x.backend, x.kv, x.work, x.bytes, x.granted, x.pre end
end

local held = pairs_of(HELD, LEASES, 'leases')
local queue = pairs_of(QUEUE, WAITING, 'waiting')
pairs_of(EVICTED, LEAVING, 'leaving')
local ents, backends, using, runs, waits, size = {}, {}, {}, 0, 0, 0
local beginnings = {}  -- how many prompts in flight have each

local function of(all, name)
  local one = all[name]
  if not one then
    one = {run = 0, wait = 0, kv = 0, work = 0, pre = 0, own = 0, unc = 0}
    all[name] = one
  end
  return one
end

local function limited(text)
  for _, l in ipairs(limits_of(text) or {}) do
    if l.concurrency > 0 then using[l.name] = (using[l.name] or 0) + 1 end
  end
end

for id, text in pairs(held) do
  limited(text)
  if queue[id] then  -- who runs does not wait
    call('HDEL', QUEUE, id)
    call('ZREM', WAITING, id)
    queue[id] = nil
    differs.waiting = true
  end
  runs = runs + 1
  local ent, class, backend, kv, work, _, granted, pre, point = figures(text)
  if ent then
    local e, b = of(ents, ent), of(backends, backend)
    local sequences = sequences_of(text)
    e.run, e.kv = e.run + sequences, e.kv + kv
    b.run, b.kv, b.work, b.pre = b.run + sequences, b.kv + kv, b.work + work, b.pre + pre
    if reserves(class) then b.own = b.own + pre end
    if class == 'preemptible' then preemptible[id] = granted end
    if point and tonumber(pre) > 0 then
      local name = backend .. ' ' .. point
      beginnings[name] = (beginnings[name] or 0) + 1
    end
  end
end
for _, text in pairs(queue) do
  waits = waits + 1
  limited(text)
  local ent, _, _, kv, _, bytes = figures(text)
  if ent then
    local e = of(ents, ent)
    e.wait, e.kv, size = e.wait + 1, e.kv + kv, size + bytes
  end
end

-- How long a beginning is only `uncounted` says; of one that it has not, nothing is known.
local flat = call('HGETALL', UNCOUNTED)
for i = 1, #flat, 2 do
  local name, prompts, tokens = flat[i], string.match(flat[i + 1], '^(%d+) (%d+)$')
  local backend, held = string.match(name, '^(%S+) '), prompts and beginnings[name]
  if held then
    local b = of(backends, backend)
    b.unc = b.unc + tokens
  end
  if not held then call('HDEL', UNCOUNTED, name) end
  if held and tonumber(prompts) ~= held then call('HSET', UNCOUNTED, name, held .. ' ' .. tokens) end
  if tonumber(prompts) ~= held then differs['uncounted:' .. name] = true end
end

local old = {}
flat = call('HGETALL', TOTALS)
for i = 1, #flat, 2 do old[flat[i]] = flat[i + 1] end
local sums, able, due = {}, 0, 0
for ent, x in pairs(ents) do
  local e = 'e:' .. ent
  local cap, base = tonumber(old[e .. ':cap']), tonumber(old[e .. ':base'])
  able, due = able + able_of(x.wait, x.run, cap), due + due_of(x.wait, x.run, base)
  sums[e .. ':run'], sums[e .. ':wait'], sums[e .. ':kv'] = x.run, x.wait, x.kv
  sums[e .. ':cap'], sums[e .. ':base'] = cap, base
end
for backend, x in pairs(backends) do
  local b = 'b:' .. backend
  sums[b .. ':run'], sums[b .. ':kv'], sums[b .. ':work'], sums[b .. ':pre'] = x.run, x.kv, x.work, x.pre
  sums[b .. ':own'], sums[b .. ':unc'] = x.own, x.unc
end
sums.run, sums.wait, sums.bytes, sums.able, sums.due = runs, waits, size, able, due
for name, value in pairs(sums) do
  local limit = string.match(name, ':cap$') or string.match(name, ':base$')
  if value == 0 and not limit then
    if old[name] then
      call('HDEL', TOTALS, name)
      differs[name] = true
    end
  elseif tonumber(old[name]) ~= value then
    call('HSET', TOTALS, name, string.format('%.0f', value))
    differs[name] = true
  end
end
for name in pairs(old) do
  if not sums[name] then
    call('HDEL', TOTALS, name)
    differs[name] = true
  end
end

flat = call('HGETALL', USING)
for i = 1, #flat, 2 do
  local name = flat[i]
  if tonumber(flat[i + 1]) ~= using[name] then
    if using[name] then call('HSET', USING, name, using[name]) else call('HDEL', USING, name) end
    differs['using:' .. name] = true
  end
  using[name] = nil
end
for name, n in pairs(using) do
  call('HSET', USING, name, n)
  differs['using:' .. name] = true
end

-- The order is rebuilt from the queue. Older versions kept none, and a request whose gateway did not listen has left
-- it: no fault.
local places = {}
for id, text in pairs(queue) do
  local x = parse(text)
  if x then places[place_of(id, x)] = true end
end
for member in pairs(members(ORDER)) do
  if not places[member] then call('ZREM', ORDER, member) end
  places[member] = nil
end
for member in pairs(places) do call('ZADD', ORDER, 0, member) end

-- Before 0.5.0 it was named so: what processes of both versions wrote meanwhile is no fault.
local renamed = call('DEL', P .. 'prey') == 1
local known = members(PREEMPTIBLE)
for id, granted in pairs(preemptible) do
  if not known[id] then
    call('ZADD', PREEMPTIBLE, granted, id)
    differs.preemptible = not renamed or nil
  end
end
for id in pairs(known) do
  if not preemptible[id] then
    call('ZREM', PREEMPTIBLE, id)
    differs.preemptible = not renamed or nil
  end
end
for _, key in ipairs({PREFILLS, LONG}) do
  for id in pairs(members(key)) do
    if not held[id] then call('ZREM', key, id) end
  end
end
known = members(WEIGHTS)
for ent in pairs(ents) do
  if not known[ent] then
    call('ZADD', WEIGHTS, weight_of(ent, '1'), ent)
    differs.weights = true
  end
end
for ent in pairs(known) do
  if not ents[ent] then
    call('ZREM', WEIGHTS, ent)
    differs.weights = true
  end
end

-- A bucket has all its fields, no more tokens than its depth, and no time in the future (it would not refill until then).
local kept, buckets = {}, {}
flat = call('HGETALL', BUCKETS)
for i = 1, #flat, 2 do
  kept[flat[i]] = flat[i + 1]
  local ent = string.match(flat[i], '^(.*):level$') or string.match(flat[i], '^(.*):at$')
  if ent then buckets[ent] = true end
end
for ent in pairs(buckets) do
  local level, at = tonumber(kept[ent .. ':level']), tonumber(kept[ent .. ':at'])
  local depth = tonumber(kept[ent .. ':depth'])
  if not level or level ~= level or not at or not depth or not tonumber(kept[ent .. ':rate']) then
    call('HDEL', BUCKETS, ent .. ':level', ent .. ':at', ent .. ':rate', ent .. ':depth')
    differs['bucket:' .. ent] = true
  elseif level > depth or at > now + LEASE_MS then
    call('HSET', BUCKETS, ent .. ':level', string.format('%.6f', math.min(level, depth)), ent .. ':at', now)
    differs['bucket:' .. ent] = true
  end
end

local names = {}
for name in pairs(differs) do names[#names + 1] = name end
table.sort(names)
if #names > 0 then
  call('HINCRBY', META, 'rebuilt', 1)
  call('HSET', META, 'rebuilt_at', now)
end
return names
