-- A request ended without a complete answer: its key is free again.
-- key request -> ok | lost
local x = find(ARGV[1], now_ms())
if not x or x.request ~= ARGV[2] then return 'lost' end
drop(ARGV[1])
return 'ok'
