-- What an engine said of its own queue: so many requests wait in it, so whole answers that were granted before those
-- have been prefilled, or are in its next step. What they held of a prefill credit is given back. What was granted less
-- than `age` ms and a step of the engine ago may not have been seen (`PrefillPace.unseen_ms` in Python). Where none wait
-- in the engine and some wait here, it is faster than believed.
-- epoch backend waiting age_ms -> fenced, or how many gave something back
if fenced(ARGV[1]) then return 'fenced' end
local backend, now = ARGV[2], now_ms()
local waiting, given, granted, left = tonumber(ARGV[3]), 0, nil, nil
local p = pace_of(backend)
local rate = per_ms(p)
local age = tonumber(ARGV[4]) + (rate > 0 and math.min(LONGEST_STEP_MS, math.ceil(p.step / rate)) or 0)
local found = whole_answers(backend, now - age, 1000)
local done = #found - waiting
for i = 1, done do
  local pre, _, at, after = give_back(found[i][1], found[i][2])
  if pre > 0 then given, granted, left = given + pre, math.min(granted or at, at), after end
end
if given > 0 then pace_told(backend, left, given, granted, now) end
if waiting == 0 and #found > 0 and call('HGET', TOTALS, 'wait') then
  p.ms = kept(FASTER * p.ms)
  keep_pace(backend, p)
end
if given > 0 then offer_free(backend, now) end
return math.max(0, done)
