-- The first terminal state wins: frees what the request held, settles its bucket, writes its ledger entry.
-- What cannot be read ends as well, and so does an earlier attempt than the one told: a node that took over may lack the
-- later one.
-- id attempt reason actual_tokens ran record -> {ok|ended|stale, reason}
local id, attempt, reason = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local told, ran = tokens_of(ARGV[4]), ARGV[5] == '1'
if not ran then told = 0 end

-- What it used; what it was charged where that cannot be known.
local function used(x) return told or x.charge end

local freed, waits = false, nil
local text = call('HGET', HELD, id)
local x = text and parse(text)
if text and not x then
  drop_unread(id)
elseif text then
  if x.attempt > attempt then return {'stale', ''} end
  local now = now_ms()
  waits = drop_lease(id, x)
  if x.pre > 0 and ran and reason == 'stop' then tell_read(x, now) end
  local queued = tonumber(x.queued) or 0
  local since = queued > 0 and queued or x.granted
  settle(x.ent, x.charge, used(x), now, ran and math.max(0, now - x.granted), math.max(0, now - since))
  settle_limits(x, told, ran, now)
  add_served(x.ent, used(x) - x.served)  -- what no renewal has told of yet
  freed = x.backend
else
  text = call('HGET', QUEUE, id)
  x = text and parse(text)
  if text and not x then
    drop_unread(id)
  elseif text then
    if x.attempt > attempt then return {'stale', ''} end
    drop_waiting(id, x)
    settle(x.ent, x.charge, used(x), now_ms())
    settle_limits(x, told, ran, now_ms())
    notify('x', id)
  else
    local before = ended(id)
    text = (before == 'evicted' or before == 'superseded') and call('HGET', EVICTED, id)
    x = text and parse(text)
    if text and not x then
      drop_unread(id)
    elseif text then  -- its slot is long free; what is told now closes its account
      if x.attempt > attempt then return {'stale', ''} end
      call('HDEL', EVICTED, id)
      call('ZREM', LEAVING, id)
      settle(x.ent, x.charge, used(x), now_ms())
      settle_limits(x, told, ran, now_ms())
      add_served(x.ent, used(x) - x.served)
    elseif before == 'gateway_lost' and reason ~= before then  -- `sweep` gave it up: its gateway was only cut off
      mark_ended(id, reason)
      call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'r', ARGV[6], 'after', before)
      return {'ok', ''}
    elseif before then
      return {'ended', before}
    else
      settle_forgotten(string.match(ARGV[6], '"entitlement":"([^"]+)"'), told or 0, now_ms())
    end
  end
end
mark_ended(id, reason)
call('XADD', LEDGER, 'MAXLEN', '~', LEDGER_KEPT, '*', 'r', ARGV[6])
if waits then offer_free(freed, now_ms()) end  -- when all that must not be lost is written
return {'ok', ''}
