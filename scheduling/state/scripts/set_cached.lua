-- How far to trust what is expected to be cached on a replica of a prompt [per mille], and how many such tokens may be
-- in flight without counting against its prefill credit (scheduling/core/placement/cached_prompts.py); -1: nothing is expected.
-- epoch backend trust most -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
local name = ARGV[2] .. ' cached'
if ARGV[3] == '-1' then call('HDEL', CREDITS, name) else call('HSET', CREDITS, name, ARGV[3] .. ' ' .. ARGV[4]) end
return 'ok'
