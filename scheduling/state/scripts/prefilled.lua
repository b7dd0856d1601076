-- What an engine said of its own queue: so many sequences wait in it, so whole answers that were granted before those of
-- which they are have been prefilled, but for the last that may be in the middle of its prompt: one of which none waits,
-- if not one of which some do. What they held of a prefill credit is given back. What was granted less
-- than `age` ms and a step of the engine ago may not have been seen (`PrefillPace.unseen_ms` in Python). Where none wait
-- in the engine and some wait here while something still counts against its credit, its time per token is `hurry` thousandths of what was believed (1,000 where its
-- steps are full).
-- epoch backend waiting age_ms hurry -> fenced, or how many gave something back
if fenced(ARGV[1]) then return 'fenced' end
local backend, now = ARGV[2], now_ms()
local waiting, given, owned, granted = tonumber(ARGV[3]), 0, 0, nil
local p = pace_of(backend)
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
  keep_pace(backend, p)
end
if given > 0 then offer_free(backend, now) end
return math.max(0, done)
