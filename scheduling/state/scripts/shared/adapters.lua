-- Which replicas have the adapter of a request. ADAPTERS has by adapter: `1 ` if a replica that lacks it may be asked to
-- load it, else `0 `; then the replicas that have it, each followed by a space.

-- What is known of the adapter that a record names; nil for a request of the base model, which every replica has.
local function homes_of(record)
  local at = behind(record, '"adapter":"', 600)
  local name = at and string.byte(record, at) ~= 34 and string.match(record, '^[^"]+', at)  -- 34: a quotation mark
  return name and (call('HGET', ADAPTERS, name) or '0 ')
end

local function serves(homes, replica)
  return not homes or string.find(homes, ' ' .. replica .. ' ', 1, true) ~= nil
end

local function may_load(homes)
  return homes and string.sub(homes, 1, 1) == '1'
end
