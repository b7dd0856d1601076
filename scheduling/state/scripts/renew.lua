-- Extends the expiry of what a gateway holds. Without a leader its waiting requests return to the order.
-- `served`: tokens so far, input included; the new ones are metered.
-- gateway, then <= 100 x (id attempt served) -> per item: h <backend> <note> <prefill> | w | e <reason> | s | u
even_when_full()
local gateway, now = ARGV[1], now_ms()
local expiry, waits = now + LEASE_MS, {}
local out = {}
for i = 2, #ARGV, 3 do
  local id, attempt, served = ARGV[i], tonumber(ARGV[i + 1]), tokens_of(ARGV[i + 2]) or 0
  local text, place = call('HGET', HELD, id), LEASES
  if not text then text, place = call('HGET', QUEUE, id), WAITING end
  local said
  if text then
    local x = parse(text)
    if x and x.attempt < attempt then
      said = 'u'  -- a node that took over may lack this attempt
    elseif not x or x.attempt > attempt or x.gateway ~= gateway then
      said = 's'
    else
      call('ZADD', place, expiry, id)
      if place == LEASES and served > x.served then
        add_served(x.ent, served - x.served)
        x.served = served
        call('HSET', HELD, id, compose(x))
      end
      if place == WAITING then waits[#waits + 1] = place_of(id, x) end
      said = place == LEASES and 'h ' .. x.backend .. ' ' .. x.note .. ' ' .. x.pre or 'w'
    end
  else
    local reason = ended(id)
    said = reason and 'e ' .. reason or 'u'
  end
  out[#out + 1] = said
end
if #waits > 0 and not select(2, led(now)) then
  for _, member in ipairs(waits) do call('ZADD', ORDER, 0, member) end
  hand_out(now)
end
return out
