-- Adds observations: ARGV is how many are kept, then owner and sealed observation of each. ORDER has a member
-- `owner id-for-sorting id` per entry of the stream, OWNERS how many each owner has. If there are too many, the oldest
-- of the owner with most is deleted, so that an owner with less than an equal share loses nothing to the others.
local kept = tonumber(ARGV[1])
for i = 2, #ARGV, 2 do
  local owner = ARGV[i]
  -- resets are in the stream as well and in no share; this bounds them
  local id = call('XADD', STREAM, 'MAXLEN', '~', 2 * kept, '*', '2', ARGV[i + 1])
  local ms, seq = string.match(id, '^(%d+)-(%d+)$')
  call('ZADD', ORDER, 0, owner .. ' ' .. string.format('%015.0f-%08.0f', tonumber(ms), tonumber(seq)) .. ' ' .. id)
  call('ZINCRBY', OWNERS, 1, owner)
end
local over = call('ZCARD', ORDER) - kept
while over > 0 do
  local most = call('ZREVRANGE', OWNERS, 0, 0)[1]
  if not most then
    call('DEL', ORDER)
    break
  end
  local oldest = call('ZRANGEBYLEX', ORDER, '[' .. most .. ' ', '(' .. most .. '!', 'LIMIT', 0, 1)[1]
  if oldest then
    call('ZREM', ORDER, oldest)
    call('XDEL', STREAM, string.match(oldest, '%S+$'))
    over = over - 1
    if tonumber(call('ZINCRBY', OWNERS, -1, most)) <= 0 then call('ZREM', OWNERS, most) end
  else
    call('ZREM', OWNERS, most)
  end
end
-- what earlier versions wrote was readable to whoever reads Redis
call('UNLINK', P .. 'history')
return 1
