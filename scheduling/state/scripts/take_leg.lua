-- The prefill replica that computes the prompt of a lease: the one with the fewest open prompt tokens (`choose_leg` in
-- Python). Nothing is refused: the grant of the lease has limited how many prompts may be on their way.
-- id attempt tokens exclude -> replica, nothing if none is ready, or - if the lease is not held
local id, attempt, exclude = ARGV[1], ARGV[2], ARGV[4]
local text = call('HGET', HELD, id)
if not text or string.match(text, '^%d+') ~= attempt then return '-' end
local was, at = string.match(call('HGET', LEGS, id) or '', '^(%d+) (%S+)')
if was == attempt then return at end
if was then call('HDEL', LEGS, id) end
local ready, open = call('HGETALL', PREFILL), open_legs()
local best, best_full, best_tokens, best_run
for i = 1, #ready, 2 do
  local name = ready[i]
  if name ~= exclude or #ready == 2 then
    local o = open[name] or {0, 0}
    local full, run, tokens = o[1] >= tonumber(ready[i + 1]), o[1], o[2]
    local better = not best or (best_full and not full)
    if not better and full == best_full then
      better = tokens < best_tokens
        or tokens == best_tokens and (run < best_run or run == best_run and name < best)
    end
    if better then best, best_full, best_tokens, best_run = name, full, tokens, run end
  end
end
if best then call('HSET', LEGS, id, attempt .. ' ' .. best .. ' ' .. ARGV[3]) end
return best or ''
