-- The leader's decisions: waiting -> lease, each checked again here, each told to the gateway that waits.
-- A gateway that nobody hears for (PUBLISH counts its listeners) gets nothing, and a lease ends when the waiting entry
-- would have ended: a slot given to a dead gateway is not lost for longer than what it held when it died.
-- epoch, then <= 100 x (id attempt backend cap note) -> fenced, or per item: ok | gone | full | ent | away
if fenced(ARGV[1]) then return 'fenced' end
local now = now_ms()
local out = {}
for i = 2, #ARGV, 5 do
  local id, attempt, backend, cap, note = ARGV[i], tonumber(ARGV[i + 1]), ARGV[i + 2], tonumber(ARGV[i + 3]), ARGV[i + 4]
  local said
  local text = call('HGET', QUEUE, id)
  if not text then
    local held = call('HGET', HELD, id)
    local x = held and parse(held)
    said = x and x.attempt == attempt and x.backend == backend and 'ok' or 'gone'
  else
    local x = parse(text) or {attempt = -1, kv = 0, ent = '', gateway = ''}  -- cannot be read: `sweep` ends it
    local offer = call('HGET', READY, backend)
    local b = 'b:' .. backend
    local v = call('HMGET', TOTALS, b .. ':run', b .. ':kv', 'e:' .. x.ent .. ':run')
    local slots, kv = string.match(offer or '0 0', '^(%d+) (%d+)$')
    if x.attempt ~= attempt then
      said = 'gone'
    elseif (tonumber(v[1]) or 0) >= tonumber(slots) or (tonumber(v[2]) or 0) + x.kv > tonumber(kv) then
      said = 'full'
    elseif (tonumber(v[3]) or 0) >= cap then
      said = 'ent'
    elseif call('PUBLISH', 'qm:gw:' .. x.gateway, id .. ' ' .. attempt .. ' ' .. backend .. ' ' .. note) == 0 then
      said = 'away'
    else
      promote(id, x, backend, now, note)
      said = 'ok'
    end
  end
  out[#out + 1] = said
end
return out
