-- The leader's decisions: waiting -> lease, each checked again here, each told to the gateway that waits.
-- A gateway that does not listen (PUBLISH counts listeners) gets nothing. A lease expires when the waiting entry would
-- have, so a slot granted to a dead gateway is lost no longer than what it held when it died.
-- `turnaround`: from a decision to the engine [ms], as measured by the leader; -: not measured.
-- `tokens` of the prompt, up to `point` (-: none), are believed to be cached there.
-- epoch turnaround, then <= 100 x (id attempt backend cap note point tokens) -> fenced, or per item: ok | gone | full | ent | away
if fenced(ARGV[1]) then return 'fenced' end
local now = now_ms()
local out = {}
if ARGV[2] ~= '-' then call('HSET', CREDITS, ' turnaround', ARGV[2]) end
for i = 3, #ARGV, 7 do
  local id, attempt, backend, cap, note = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local point = ARGV[i + 5] ~= '-' and ARGV[i + 5]
  local said
  local text = call('HGET', QUEUE, id)
  if not text then
    local held = call('HGET', HELD, id)
    local x = held and parse(held)
    said = x and x.attempt == attempt and x.backend == backend and 'ok' or 'gone'
  else
    local x = parse(text) or {attempt = -1, kv = 0, ent = '', gateway = ''}  -- cannot be read: `sweep` ends it
    said = x.attempt ~= attempt and 'gone' or grant_waiting(id, x, backend, cap, note, now, point,
      tonumber(ARGV[i + 6]))
  end
  out[#out + 1] = said
end
return out
