-- Entries: a request that waits or runs, as text (scheduling/state/codec.py), and how it ended.

-- An entry: fourteen words and the record, which begins with the format and what it takes of a prefill credit
-- (scheduling/state/codec.py). Before format 3 it took none; of format 1 it has neither class nor served.
local HEAD = '{"v":' .. ENTRY_FORMAT .. ',"pre":'
local BEFORE_RECORD = '(%d+) (%S+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%S+) '
local WORDS_3 = '^' .. BEFORE_RECORD .. HEAD .. '(%d+),()'
local WORDS = '^' .. BEFORE_RECORD .. '({.*)$'
local WORDS_1 = '^(%d+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%S+) ({.*)$'

-- Nothing for what is of a newer format, or no entry: ask before anything is written.
local function parse(text)
  local a, e, cl, b, kv, c, w, by, q, g, gw, s, u, n, pre, r = string.match(text, WORDS_3)
  if not a then
    a, e, cl, b, kv, c, w, by, q, g, gw, s, u, n, r = string.match(text, WORDS)
    if not a then
      a, e, b, kv, c, w, by, q, g, gw, s, n, r = string.match(text, WORDS_1)
      cl, u = '-', 0
    end
    if not a or tonumber(string.match(r, '^{"v":(%d+)') or 1) > ENTRY_FORMAT then return nil end
    pre = b == '-' and string.match(r, '"input_tokens":(%d+)') or 0
    r = string.match(r, '^{"v":%d+,(.*)$') or string.sub(r, 2)
  else
    r = string.sub(text, r)
  end
  return {
    attempt = tonumber(a), ent = e, class = cl, backend = b, kv = tonumber(kv), charge = tonumber(c), work = tonumber(w),
    bytes = tonumber(by), queued = q, granted = tonumber(g), gateway = gw, seq = tonumber(s), served = tonumber(u),
    note = n, pre = tonumber(pre), record = r,
  }
end

-- What follows the head of a record that a gateway wrote.
local function tail_of(record)
  return string.sub(record, string.match(record, '^{"v":%d+,"pre":%d+,()'))
end

-- Behind the first place where these words are in a record, or in an entry: nil where they are not. What scripts ask for
-- is mostly in the second half, at most so many bytes before the end: the search begins there.
local function behind(text, words, near)
  local _, at = string.find(text, words, -near, true)
  if not at then _, at = string.find(text, words, 1, true) end
  return at and at + 1
end

-- Nobody sees its first token.
local function is_whole(record)
  local at = behind(record, '"streamed":', 350)
  return at and string.byte(record, at) == 102  -- the f of `false`
end

-- An embedding, a rank, a score, a label.
local function reads_only(record)
  local at = behind(record, '"output_bound":', 900)
  return at and string.sub(record, at, at + 1) == '0,'
end

-- How many sequences its engine runs for a request, as its record (or its whole entry) says; of older ones: 1.
local SEQUENCES = '"sequences":'
local function sequences_of(text)
  local at = behind(text, SEQUENCES, 500)
  if not at then return 1 end
  if string.sub(text, at, at + 1) == '1,' then return 1 end
  return tonumber(string.match(text, '^%d+', at)) or 1
end

local function compose(x)
  return x.attempt .. ' ' .. x.ent .. ' ' .. x.class .. ' ' .. x.backend .. ' ' .. x.kv .. ' ' .. x.charge .. ' '
    .. x.work .. ' ' .. x.bytes .. string.format(' %d %d ', x.queued, x.granted) .. x.gateway .. ' '
    .. string.format('%d ', x.seq) .. x.served .. ' ' .. x.note .. ' ' .. HEAD .. string.format('%d,', x.pre) .. x.record
end

-- Tokens as a gateway tells them, or false for what no request can have used. Asked for before anything is written: a
-- script that fails half-way leaves a request without an end.
local function tokens_of(word)
  local n = tonumber(word)
  return n and n >= 0 and n <= MAX_USED and n == math.floor(n) and n
end

local function ended(id)
  return call('GET', P .. 'ended:' .. id)
end

local function mark_ended(id, reason)
  call('SET', P .. 'ended:' .. id, reason, 'PX', ENDED_MS)
end
