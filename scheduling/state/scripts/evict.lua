-- Evicts preemptible requests for waiting ones where no replica has room. The leader names those whose class may evict.
-- Each gets its slot in the same step, and its gateway is told as by `grant`.
-- epoch, then <= 100 x (id attempt cap exclude note) -> fenced, or per item: ok | gone | full | ent | away
if fenced(ARGV[1]) then return 'fenced' end
local now = now_ms()
local out = {}
for i = 2, #ARGV, 5 do
  local id, attempt, cap, exclude, note = ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3], ARGV[i + 4]
  local said = 'gone'
  local text = call('HGET', QUEUE, id)
  local x = text and parse(text)
  if not x then
    local held = call('HGET', HELD, id)
    local y = held and parse(held)
    if y and y.attempt == attempt then said = 'ok' end
  elseif x.attempt == attempt then
    local ready, v = survey(x.ent)
    local owner = owns(x, v[5], v[10])
    local homes = homes_of(x.record)
    local backend, at, _, _, roomy, credit = choose(ready, v, x.kv, exclude, x.pre, x.record, owner, homes)
    local used = backend and v[at + 3]
    if v[5] >= cap then
      said = 'ent'
    elseif call('PUBSUB', 'NUMSUB', 'qm:gw:' .. x.gateway)[2] == 0 then
      said = 'away'
    else
      if not roomy then backend, credit, used = make_room(ready, v, x.kv, exclude, x.pre, now, owner, homes) end
      said = 'full'
      if backend then
        promote(id, x, backend, now, note, credit, used, believed(backend, x.pre, x.record))
        call('PUBLISH', 'qm:gw:' .. x.gateway, notice(id, x, backend, note, credit, x.pre))
        said = 'ok'
      end
    end
  end
  out[#out + 1] = said
end
return out
