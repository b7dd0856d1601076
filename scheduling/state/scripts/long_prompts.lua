-- The long prompts that hold prefill credit: their first output token has not come. -> {id, entry, ...}
local out = {}
for _, id in ipairs(call('ZRANGE', LONG, 0, 99)) do
  local text = call('HGET', HELD, id)
  if text then out[#out + 1], out[#out + 2] = id, text end
end
return out
