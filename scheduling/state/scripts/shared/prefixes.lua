-- The index of where prompts ran: replicas by point, the last first, in two generations
-- (scheduling/core/placement.py).

-- The points of a record and what is known of each; nil for a request without points. The last answer is kept: whoever
-- chooses a replica by it grants next.
local known_record, known_points
local function points_of(record)
  if record == known_record then return known_points end
  known_record, known_points = record, nil
  local _, at = string.find(record, '"prefixes":"', 1, true)
  local skew, text = string.match(record, '^(%x+):(%x+)"', (at or #record) + 1)
  if not skew then return nil end
  local names = {}
  for i = 1, #text, POINT_CHARS do names[#names + 1] = string.sub(text, i, i + NAME_CHARS - 1) end
  local ran, before, missing = call('HMGET', WARM, unpack(names)), {}, {}
  for i, name in ipairs(names) do
    if not ran[i] then missing[#missing + 1] = name end
  end
  if #missing > 0 then
    local v = call('HMGET', WARM_BEFORE, unpack(missing))
    for i, name in ipairs(missing) do before[name] = v[i] end
  end
  skew = tonumber(skew, 16)
  known_points = {skew = skew, goes_on = skew % 2 == 0, names = names, text = text, ran = ran, before = before}
  return known_points
end

-- What it is worth to run where its points are known, by replica: the deepest point that names one counts. Points of
-- one prompt mostly name the same replicas, which are then looked at once.
local function worth_of(p)
  local worth, seen = {}, nil
  for n = #p.names, 1, -1 do
    local places = p.ran[n] or p.before[p.names[n]]
    if places and places ~= seen then
      seen = places
      local value = tonumber(string.sub(p.text, (n - 1) * POINT_CHARS + NAME_CHARS + 1, n * POINT_CHARS), 16)
      for replica in string.gmatch(places, '%S+') do worth[replica] = worth[replica] or value end
    end
  end
  return worth
end

-- `cached_for` in Python: how many cached tokens are worth so much.
local function cached_for(p, value)
  if not p.goes_on then return math.floor(value / FIRST_GAIN) end
  return math.floor((value + math.sqrt(value * (value + 4 * GAIN * HALF_GAIN_TOKENS))) / (2 * GAIN))
end

-- How much of what is expected to be cached of a prompt does not count [per mille] (`set_cached`); false: it all does.
local trusted
local function trust_in_caches()
  if trusted == nil then trusted = tonumber(call('HGET', META, 'cached')) or false end
  return trusted
end

-- What a prompt of `pre` tokens takes of a prefill credit: less what is believed to be cached of it, as far as that is
-- trusted (scheduling/core/cached_prompts.py).
local function charged(pre, record)
  local trust = trust_in_caches() or 0
  local p = trust > 0 and pre > 1 and points_of(record)
  if not p then return pre end
  local most = 0
  for _, value in pairs(worth_of(p)) do most = math.max(most, value) end
  return math.max(1, pre - math.floor(cached_for(p, most) * trust / 1000))
end

-- A request was granted there: the next one with the same beginning finds it cached.
local function remember_place(x)
  local p = points_of(x.record)
  if not p then return end
  if x.pre > 0 and trust_in_caches() then
    local expected = cached_for(p, worth_of(p)[x.backend] or 0)
    if expected > 0 then call('HINCRBY', META, 'expected', expected) end
    call('HINCRBY', META, 'prompts', string.match(x.record, '"input_tokens":(%d+)') or 0)
  end
  local set, first = {}, x.backend .. ' '
  for i, name in ipairs(p.names) do
    local ran = p.ran[i]
    if not ran or ran ~= x.backend and string.sub(ran, 1, #first) ~= first then  -- else it ran here last as well
      local places, n = x.backend, 1
      for other in string.gmatch(ran or p.before[name] or '', '%S+') do
        if other ~= x.backend and n < PLACES_KEPT then places, n = places .. ' ' .. other, n + 1 end
      end
      set[#set + 1], set[#set + 2] = name, places
    end
  end
  known_record = nil
  if #set == 0 then return end
  call('HSET', WARM, unpack(set))
  if call('HLEN', WARM) > POINTS_KEPT then
    call('UNLINK', WARM_BEFORE)
    call('RENAME', WARM, WARM_BEFORE)
  end
end
