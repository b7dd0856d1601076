-- The prompt of a lease has been computed, or its prefill replica failed. The leg of another attempt stays.
-- id attempt -> 1 | 0
local text = call('HGET', LEGS, ARGV[1])
if not text or string.match(text, '^%d+') ~= ARGV[2] then return 0 end
return call('HDEL', LEGS, ARGV[1])
