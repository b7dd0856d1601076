-- The index of where prompts ran: replicas by point, the last first, in two generations
-- (scheduling/core/placement/rule.py).

-- The points of a record and what is known of each; nil for a request without points. The last answer is kept: whoever
-- chooses a replica by it grants next.
local known_text, known_points
local function read_points(record, at)
  local skew, text = string.match(record, '^(%x+):(%x+)"', at)
  if not skew then return nil end
  if text == known_text and known_points.told == skew then return known_points end
  local names, told = {}, skew
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
  known_text = text
  known_points = {
    told = told, skew = skew, goes_on = skew % 2 == 0, names = names, text = text, ran = ran, before = before,
  }
  return known_points
end

local function points_of(record)
  local at = behind(record, '"prefixes":"', 700)
  if at and string.byte(record, at) ~= 34 then return read_points(record, at) end  -- 34: a quotation mark, there are none
end

-- How many of its tokens are before its n-th point.
local function depth_of(p, n)
  return tonumber(string.sub(p.text, (n - 1) * POINT_CHARS + NAME_CHARS + 1, n * POINT_CHARS), 16)
end

-- `expected` in Python: how many are expected to be cached where the n-th point is the deepest known one.
local function expected_of(p, n) return math.floor((depth_of(p, n) + depth_of(p, math.min(n + 1, #p.names))) / 2) end

-- `worth` in Python: how many tokens of outstanding work more a replica may have for so many cached ones.
local function worth(p, cached)
  local value = FIRST_GAIN * cached
  if p.goes_on then value = math.floor(GAIN * cached * cached / (cached + HALF_GAIN_TOKENS)) end
  return math.min(value, MAX_WORTH)
end

-- What it is worth to run where its points are known, by replica: the deepest point that names one counts. Points of
-- one prompt mostly name the same replicas, which are then looked at once.
local function worth_of(p)
  local found, seen = {}, nil
  for n = #p.names, 1, -1 do
    local places = p.ran[n] or p.before[p.names[n]]
    if places and places ~= seen then
      seen = places
      local value = worth(p, expected_of(p, n))
      for replica in string.gmatch(places, '%S+') do found[replica] = found[replica] or value end
    end
  end
  return found
end

-- The deepest point of a prompt that names a replica, how many tokens are before it, and how many are expected to be
-- cached there; nil: none.
local function known_at(p, backend)
  for n = #p.names, 1, -1 do
    local places = p.ran[n] or p.before[p.names[n]]
    if places and string.find(' ' .. places .. ' ', ' ' .. backend .. ' ', 1, true) then
      return p.names[n], depth_of(p, n), expected_of(p, n)
    end
  end
end

-- Of a prompt of `pre` tokens: up to which point it is believed to be cached on a replica, and how many of its tokens
-- need not count against the replica's prefill credit (scheduling/core/placement/cached_prompts.py); nil: all count.
local function believed_there(c, p, backend, pre)
  local point, before, expected = known_at(p, backend)
  local tokens = point and math.min(pre - 1, before, math.floor(expected * c.trust / 1000)) or 0
  if tokens <= 0 then return nil end
  return point, uncounted_of(backend, point, tokens, c.most)
end

local function believed(backend, pre, record)
  local c = cache_of(backend)
  local p = c and c.trust > 0 and pre > 1 and points_of(record)
  if p then return believed_there(c, p, backend, pre) end
end

-- A request was granted there: the next one with the same beginning finds it cached.
local function remember_points(p, x)
  if x.pre > 0 and cache_of(x.backend) then
    local _, _, expected = known_at(p, x.backend)
    if (expected or 0) > 0 then call('HINCRBY', EXPECTED, x.backend .. ' tokens', expected) end
    call('HINCRBY', EXPECTED, x.backend .. ' prompts', string.match(x.record, '"input_tokens":(%d+)') or 0)
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
  known_text = nil
  if #set == 0 then return end
  call('HSET', WARM, unpack(set))
  if call('HLEN', WARM) > POINTS_KEPT then
    call('UNLINK', WARM_BEFORE)
    call('RENAME', WARM, WARM_BEFORE)
  end
end

local function remember_place(x)
  local p = points_of(x.record)
  if p then remember_points(p, x) end
end
