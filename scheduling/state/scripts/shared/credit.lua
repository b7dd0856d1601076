-- Prefill credit of replicas: which leases hold it, and what is predicted to be prefilled.

-- `prefill_fits` in Python: room for a prompt beside those that count (`ahead`): whose first token has not come and is
-- not predicted to come by then. For an owner's prompt: those of owners that count (`owned_ahead`).
local function prefill_fits(credit, ahead, need)
  return credit == 0 or ahead == 0 or ahead + need <= credit
end

-- Owners' part of what is held of a prefill credit; never more of it counts than of the whole.
local function owned_ahead(owned, ahead) return math.min(owned, ahead) end

-- Whether a request is an owner's within its reserved capacity.
local function owns(x, run, base)
  return reserves(x.class) and base and run < base
end

-- `PrefillPace` in Python (scheduling/core/capacity/prefill_pace.py): what is left to prefill, predicted. In `credits` under
-- `<replica> pace`: left at sure ms tokens last; under `<replica> step` its step budget, under ` turnaround` [ms].
local paces = {}
local function pace_of(backend)
  local p = paces[backend]
  if p then return p end
  local left, at, sure, rest =
    string.match(call('HGET', CREDITS, backend .. ' pace') or '0 0 0 0.000 0.000 0', '^(%S+) (%S+) (%S+) (.*)$')
  p = {left = tonumber(left) or 0, at = tonumber(at) or 0, sure = tonumber(sure) or 0, rest = rest or '0.000 0.000 0'}
  paces[backend] = p
  return p
end

-- How fast it is. A grant beside no other needs none of this.
local function rate_of(backend)
  local p = pace_of(backend)
  if p.ms then return p end
  local ms, tokens, last = string.match(p.rest, '^(%S+) (%S+) (%S+)$')
  p.ms, p.tokens, p.last = tonumber(ms) or 0, tonumber(tokens) or 0, tonumber(last) or 0
  local v = call('HMGET', CREDITS, backend .. ' step', ' turnaround')
  p.step, p.turnaround = math.max(1, tonumber(v[1]) or USUAL_BUDGET), tonumber(v[2]) or TURNAROUND_MS
  return p
end

local function keep_pace(backend, p)
  call('HSET', CREDITS, backend .. ' pace', string.format('%.3f %d %d ', p.left, p.at, p.sure) .. p.rest)
end

local function keep_rate(backend, p)
  p.rest = string.format('%.3f %.3f %d', p.ms, p.tokens, p.last)
  keep_pace(backend, p)
end

-- The text that is stored.
local function kept(x)
  return x == math.floor(x) and x or tonumber(string.format('%.3f', x))
end

local function per_ms(p) return p.ms > 0 and p.tokens / p.ms or 0 end

local function left_of(backend, now)
  local p = pace_of(backend)
  if p.left == 0 then return 0 end
  return math.max(0, p.left - per_ms(rate_of(backend)) * math.max(0, now - p.at))
end

local function pace_granted(backend, used, need, whole, now)
  local p = pace_of(backend)
  if used == 0 then p.sure = need elseif whole then p.sure = p.sure + need end
  p.left, p.at = kept(math.min(left_of(backend, now), used) + need), now
  keep_pace(backend, p)
end

local function pace_told(backend, used, given, granted, now, begun)
  local p = rate_of(backend)
  p.left, p.at, p.sure = kept(math.min(math.max(left_of(backend, now), used - p.step - (begun or 0)), used)), now, used
  p.ms = kept(PREFILL_KEPT * p.ms + math.max(1, now - math.max(p.last, granted)))
  p.tokens, p.last = kept(PREFILL_KEPT * p.tokens + given), now
  keep_rate(backend, p)
end

-- A request whose prompt is only read has ended: that is the end of its prompt.
local function tell_read(x, now)
  if not reads_only(x.record) then return end
  pace_told(x.backend, tonumber(call('HGET', TOTALS, 'b:' .. x.backend .. ':pre')) or 0, x.pre, x.granted, now)
end

-- How many of the `used` tokens count, and in how many ms they are fewer (0: not before a first token comes).
local function ahead_of(backend, used, now)
  if used <= 0 then return 0, 0 end
  local p = rate_of(backend)
  local rate, least = per_ms(p), math.max(0, used - p.sure)
  if rate <= 0 or least >= used then return used, 0 end
  local left, done = math.min(p.left, used), rate * math.max(0, now + p.turnaround - p.at)
  if done >= left then return least, 0 end
  local steps = math.floor(done / p.step)
  local ahead = math.max(least, math.ceil(left - p.step * steps))
  if ahead <= least then return ahead, 0 end
  return ahead, math.max(1, math.ceil((math.min(left, p.step * (steps + 1)) - done) / rate))
end

-- `Beginnings` in Python (scheduling/core/capacity/uncounted.py): those of prompts in flight that do not count. In `uncounted`
-- under `<replica> <point>`: of how many prompts, and tokens; the sum of a replica's is its `unc`. A lease has its point
-- in its record.
local UNCOUNTED_POINT = '"uncounted":"(%x+)",'

local function uncounted_of(backend, point, tokens, most)
  local used = tonumber(call('HGET', TOTALS, 'b:' .. backend .. ':unc')) or 0
  if used <= 0 or call('HEXISTS', UNCOUNTED, backend .. ' ' .. point) == 1 then return tokens end
  return math.max(0, math.min(tokens, most - used))
end

local function take_beginning(backend, point, tokens)
  local name = backend .. ' ' .. point
  local prompts, before = string.match(call('HGET', UNCOUNTED, name) or '', '^(%d+) (%d+)$')
  if not prompts then shift('b:' .. backend .. ':unc', tokens) end
  call('HSET', UNCOUNTED, name, (prompts or 0) + 1 .. ' ' .. (before or tokens))
end

local function leave_beginning(backend, record, from)
  local _, _, point = string.find(record, '^' .. UNCOUNTED_POINT, from)
  local name = point and backend .. ' ' .. point
  local prompts, tokens = string.match(name and call('HGET', UNCOUNTED, name) or '', '^(%d+) (%d+)$')
  if not prompts then return end
  if tonumber(prompts) > 1 then
    call('HSET', UNCOUNTED, name, prompts - 1 .. ' ' .. tokens)
  else
    call('HDEL', UNCOUNTED, name)
    shift('b:' .. backend .. ':unc', -tokens)
  end
end

-- What a lease holds of a prefill credit is given back: at its first token, or when that must have come. Once: what it
-- holds is 0 then. The rest of the entry is left as it is, and the sums are for `given_back`. -> how much, where, when
-- it was granted, and how much of it was an owner's
local GRANTED = '^%d+ %S+ %S+ %S+ %d+ %d+ %d+ %d+ %d+ (%d+)'
local HELD_CREDIT = '^%d+ %S+ (%S+) (%S+) %d+ %d+ %d+ %d+ %d+ (%d+) %S+ %d+ %d+ %S+ ' .. HEAD .. '()(%d+)()'
local function give_back(id, text)
  local class, backend, granted, from, pre, to = string.match(text, HELD_CREDIT)
  pre = tonumber(pre)
  if not pre or pre == 0 then return 0 end
  call('HSET', HELD, id, string.sub(text, 1, from - 1) .. '0' .. string.sub(text, to))
  if is_whole(text) then call('ZREM', PREFILLS, id) end
  if pre >= LONG_TOKENS then call('ZREM', LONG, id) end
  leave_beginning(backend, text, to + 1)
  return pre, backend, tonumber(granted), reserves(class) and pre or 0
end

-- Returns credit on a replica, `owned` of it by owners. -> what is still held there
local function given_back(backend, tokens, owned)
  shift('b:' .. backend .. ':own', -owned)
  return shift('b:' .. backend .. ':pre', -tokens)
end

-- Whole answers that hold prefill credit of a replica and were granted by then, the first first; at most so many of all
-- are looked at.
local function whole_answers(backend, by, most)
  local found = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', PREFILLS, '-inf', by, 'LIMIT', 0, most)) do
    local text = call('HGET', HELD, id)
    if text and string.match(text, '^%S+ %S+ %S+ (%S+)') == backend then found[#found + 1] = {id, text} end
  end
  return found
end
