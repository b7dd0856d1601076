-- Extends the expiry of claims. A claim that was lost is made again, unless another request has the key.
-- gateway kept_ms, <= 100 x (key print request) -> per item held | done | lost
local gateway, now = ARGV[1], now_ms()
local answers = {}
for i = 3, #ARGV, 3 do
  local key, print, request = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local x = find(key, now)
  if x and x.request ~= request then
    answers[#answers + 1] = 'lost'
  elseif x and x.state == 'd' then
    answers[#answers + 1] = 'done'
  else
    put_running(key, print, request, gateway, x and x.began or now, now)
    answers[#answers + 1] = 'held'
  end
end
tidy(now, tonumber(ARGV[2]))
return answers
