-- Replaces the ready prefill replicas and their slots. Returns the open legs of each replica, also of former ones.
-- epoch, then replica slots ... -> fenced, or {replica, legs, replica, ...}, sorted
if fenced(ARGV[1]) then return 'fenced' end
call('DEL', PREFILL)
if ARGV[2] then call('HSET', PREFILL, unpack(ARGV, 2)) end
local open, names, out = open_legs(), {}, {}
for name in pairs(open) do names[#names + 1] = name end
table.sort(names)
for _, name in ipairs(names) do
  out[#out + 1] = name
  out[#out + 1] = open[name][1]
end
return out
