-- Sets weight, debt and burst of entitlements, after the leader's tick. The new weights apply to requests in flight at
-- once. An entitlement without figures ("-") is deleted, with its meter.
-- epoch, then <= 100 x (ent weight debt burst) -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
for i = 2, #ARGV, 4 do
  local ent, weight = ARGV[i], ARGV[i + 1]
  if weight == '-' then
    call('HDEL', STANDING, ent)
    call('HDEL', METER, ent .. ':served', ent .. ':refused', ent .. ':refusals')
  else
    call('HSET', STANDING, ent, weight .. ' ' .. ARGV[i + 2] .. ' ' .. ARGV[i + 3])
    call('ZADD', WEIGHTS, 'XX', weight, ent)
  end
end
return 'ok'
