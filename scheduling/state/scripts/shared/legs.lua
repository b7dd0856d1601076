-- Prompts that prefill replicas compute for leases on decode replicas (scheduling/core/placement/legs.py).

-- What is open at each prefill replica: {legs, prompt tokens} by name. A leg whose lease has ended ends here.
local function open_legs()
  local flat, ids, open = call('HGETALL', LEGS), {}, {}
  for i = 1, #flat, 2 do ids[#ids + 1] = flat[i] end
  for from = 1, #ids, 1000 do
    local till = math.min(from + 999, #ids)
    for i, lease in ipairs(call('ZMSCORE', LEASES, unpack(ids, from, till))) do
      local at = from + i - 1
      local name, tokens = string.match(flat[2 * at], '^%d+ (%S+) (%d+)$')
      if lease and name then
        local o = open[name] or {0, 0}
        open[name] = {o[1] + 1, o[2] + tonumber(tokens)}
      else
        call('HDEL', LEGS, ids[at])
      end
    end
  end
  return open
end
