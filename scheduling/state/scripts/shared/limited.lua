-- Limits of keys and users (scheduling/core/admission/key_limits.py): what an entry says of its scopes, and how many requests each has
-- in flight.

-- `<charge> <scope>=<requests a minute>,<tokens a minute>,<concurrency> ...` in a record; nothing: it has none.
local function is_limited(text)
  local at = behind(text, '"limits":"', 200)
  return at and string.byte(text, at) ~= 34  -- a quotation mark: they are empty
end

local LIMITS = '"limits":"([^"]+)"'
local function limits_of(text)
  local words = string.match(text, LIMITS)
  if not words then return nil end
  local found = {charge = tonumber(string.match(words, '^%d+'))}
  for name, r, t, c in string.gmatch(words, ' ([^ =]+)=(%d+),(%d+),(%d+)') do
    found[#found + 1] = {name = name, requests = tonumber(r), tokens = tonumber(t), concurrency = tonumber(c)}
  end
  return found
end

-- A record with these words in the place of its own.
local function with_limits(record, words)
  return (string.gsub(record, '"limits":"[^"]*"', '"limits":"' .. words .. '"', 1))
end

-- What has a limit of concurrency and is in flight is counted together with its totals.
local function count_scopes(text, by)
  for _, l in ipairs(limits_of(text) or {}) do
    if l.concurrency > 0 then
      local n = redis.pcall('HINCRBY', USING, l.name, by)
      if type(n) == 'table' or n <= 0 then call('HDEL', USING, l.name) end  -- no number: the leader writes it anew
    end
  end
end

local function count_limits(text, by)
  if is_limited(text) then count_scopes(text, by) end
end
