-- Takes a key for a request, unless another one has it.
-- key print request gateway kept_ms -> mine | other request | running request age_ms ends_ms heard | done request
-- reason answer
local key, print, request, gateway = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local now = now_ms()
local x = find(key, now)
if x then
  if x.print ~= print then return {'other', x.request} end
  if x.state == 'd' then return {'done', x.request, x.reason, call('HGET', ANSWERS, key) or ''} end
  if x.request ~= request then
    local heard = call('PUBSUB', 'NUMSUB', 'qm:gw:' .. x.gateway)[2]
    return {'running', x.request, math.max(0, now - x.began), x.ends - now, heard > 0 and 1 or 0}
  end
  return {'mine'}
end
put_running(key, print, request, gateway, now, now)
tidy(now, tonumber(ARGV[5]))
return {'mine'}
