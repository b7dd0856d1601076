-- `waiting` sequences wait inside an engine, so whole answers granted before those have been prefilled: their prefill
-- credit is returned. The last of them keeps its credit, since it may be in the middle of its prompt. What was granted
-- less than `age` ms and one engine step ago may not have been seen (`PrefillPace.unseen_ms` in Python). Where none wait
-- in the engine and some wait here, while something still counts against the credit, the believed time per token is
-- multiplied by `hurry` thousandths (1,000 where steps are full).
-- epoch backend waiting age_ms hurry -> fenced, or how many returned something
if fenced(ARGV[1]) then return 'fenced' end
local backend, now = ARGV[2], now_ms()
local waiting, given, owned, granted = tonumber(ARGV[3]), 0, 0, nil
local p = rate_of(backend)
local rate = per_ms(p)
local age = tonumber(ARGV[4]) + (rate > 0 and math.min(LONGEST_STEP_MS, math.ceil(p.step / rate)) or 0)
local found = whole_answers(backend, now - age, 1000)
local done, behind = #found, waiting
while behind > 0 and done > 0 do
  behind, done = behind - sequences_of(found[done][2]), done - 1
end
if behind == 0 and rate > 0 then done = done - 1 end  -- where no rate is known nothing predicts when it is over
local last = found[done + 1]  -- where one is kept
local begun = last and rate > 0 and tonumber(string.match(last[2], HEAD .. '(%d+)')) or 0
for i = 1, done do
  local pre, _, at, of_owner = give_back(found[i][1], found[i][2])
  if pre > 0 then given, owned, granted = given + pre, owned + of_owner, math.min(granted or at, at) end
end
if given > 0 then pace_told(backend, given_back(backend, given, owned), given, granted, now, begun) end
local used = tonumber(call('HGET', TOTALS, 'b:' .. backend .. ':pre')) or 0
if waiting == 0 and #found > 0 and ARGV[5] ~= '1000' and call('HGET', TOTALS, 'wait')
  and ahead_of(backend, used, now) > 0 then
  p.ms = kept(tonumber(ARGV[5]) / 1000 * p.ms)
  keep_rate(backend, p)
end
if given > 0 then offer_free(backend, now) end
return math.max(0, done)
