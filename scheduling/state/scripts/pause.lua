-- A gateway saw a replica refuse or fail requests: it offers no slots until the leader says otherwise, but stays ready.
-- One that failed (`refused` is 0) is paused only if another one offers slots. The leader is told.
-- backend ms refused why -> paused | kept | gone
local backend, refused = ARGV[1], ARGV[3]
local ready = call('HGETALL', READY)
local mine, others = false, false
for i = 1, #ready, 2 do
  local slots, rest = string.match(ready[i + 1], '^(%d+) (.*)$')
  if ready[i] == backend then mine = rest elseif tonumber(slots) > 0 then others = true end
end
local said = 'gone'
if mine then
  said = (refused == '1' or others) and 'paused' or 'kept'
  if said == 'paused' then call('HSET', READY, backend, '0 ' .. mine) end
end
notify('p', backend .. ' ' .. (said == 'paused' and ARGV[2] or 0) .. ' ' .. refused .. ' ' .. ARGV[4])
return said
