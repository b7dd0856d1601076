-- How much of what is expected to be cached of a prompt does not count against a prefill credit [per mille], as far as
-- engines bore expectations out (scheduling/core/cached_prompts.py).
-- -1: all of it counts, and expectations are not counted.
-- epoch trust -> ok | fenced
if fenced(ARGV[1]) then return 'fenced' end
if ARGV[2] == '-1' then call('HDEL', META, 'cached') else call('HSET', META, 'cached', ARGV[2]) end
return 'ok'
