-- Puts a replica in or out of those that may get work; its leases stay. An ejected one is announced to all
-- gateways, so that what has sent no byte there moves elsewhere.
-- epoch backend in slots kv ejected prefill_credit step_tokens longest speed resumes token_us -> ok | fenced
local function bound(name, value, usual)
  if value == (usual or '0') then call('HDEL', CREDITS, name) else call('HSET', CREDITS, name, value) end
end
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[3] == '1' then
  call('HSET', READY, ARGV[2], ARGV[4] .. ' ' .. ARGV[5])
  bound(ARGV[2], ARGV[7])
  bound(ARGV[2] .. ' step', ARGV[8])
  bound(ARGV[2] .. ' longest', ARGV[9])
  bound(ARGV[2] .. ' speed', ARGV[10], '1000')
  bound(ARGV[2] .. ' resumes', ARGV[11])
  bound(ARGV[2] .. ' token', ARGV[12])
else
  call('HDEL', READY, ARGV[2])
  call('HDEL', CREDITS, ARGV[2], ARGV[2] .. ' step', ARGV[2] .. ' longest', ARGV[2] .. ' speed', ARGV[2] .. ' pace',
    ARGV[2] .. ' cached', ARGV[2] .. ' resumes', ARGV[2] .. ' token')
  call('HDEL', EXPECTED, ARGV[2] .. ' tokens', ARGV[2] .. ' prompts')
  if ARGV[6] == '1' then call('PUBLISH', 'qm:ejected', ARGV[2]) end
end
return 'ok'
