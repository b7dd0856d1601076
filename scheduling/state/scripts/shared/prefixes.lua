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
  known_points = {skew = tonumber(skew, 16), names = names, text = text, ran = ran, before = before}
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

-- A request was granted there: the next one with the same beginning finds it cached.
local function remember_place(x)
  local p = points_of(x.record)
  if not p then return end
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
