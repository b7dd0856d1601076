-- Entries: a request that waits or runs, as text (scheduling/state/codec.py), and how it ended.

-- An entry: fourteen words and the record, which begins with the format and what it takes of a prefill credit
-- (scheduling/state/codec.py). Before format 3 it took none; of format 1 it has neither class nor served.
local HEAD = '{"v":' .. ENTRY_FORMAT .. ',"pre":'
local BEFORE_RECORD = '(%d+) (%S+) (%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%d+) (%d+) (%S+) '
local WORDS_3 = '^' .. BEFORE_RECORD .. HEAD .. '(%d+),(.*)$'
local WHOLE = '"streamed":false'
local READ_ONLY = '"output_bound":0,'  -- an embedding, a rank, a score, a label
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
  end
  return {
    attempt = tonumber(a), ent = e, class = cl, backend = b, kv = tonumber(kv), charge = tonumber(c), work = tonumber(w),
    bytes = tonumber(by), queued = q, granted = tonumber(g), gateway = gw, seq = tonumber(s), served = tonumber(u),
    note = n, pre = tonumber(pre), record = r,
  }
end

-- What follows the head of a record that a gateway wrote.
local function tail_of(record)
  return string.match(record, '^{"v":%d+,"pre":%d+,(.*)$')
end

-- How many sequences its engine runs for a request, as its record (or its whole entry) says; of older ones: 1.
local SEQUENCES = '"sequences":'
local function sequences_of(text)
  local _, at = string.find(text, SEQUENCES, 1, true)
  return at and tonumber(string.match(text, '^%d+', at + 1)) or 1
end

local function compose(x)
  return string.format(
    '%d %s %s %s %d %d %d %d %.0f %.0f %s %d %d %s %s%d,%s', x.attempt, x.ent, x.class, x.backend, x.kv, x.charge,
    x.work, x.bytes, x.queued, x.granted, x.gateway, x.seq, x.served, x.note, HEAD, x.pre, x.record
  )
end

-- Tokens as a gateway tells them, or false for what no request can have used. Asked for before anything is written: a
-- script that fails half-way leaves a request without an end.
local function tokens(word)
  local n = tonumber(word)
  return n and n >= 0 and n <= MAX_USED and n == math.floor(n) and n
end

local function ended(id)
  return call('GET', P .. 'ended:' .. id)
end

local function mark_ended(id, reason)
  call('SET', P .. 'ended:' .. id, reason, 'PX', ENDED_MS)
end
