-- The keys of a pool. KEYS[1] is its prefix, `qm:{<pool>}:`: all of them have one hash tag. One a line,
-- so that a script makes those that it uses.

local P = KEYS[1]
local META = P .. 'meta'
local READY = P .. 'ready'
local TOTALS = P .. 'totals'
local BUCKETS = P .. 'buckets'
local LEASES = P .. 'leases'
local HELD = P .. 'held'
local WAITING = P .. 'waiting'
local QUEUE = P .. 'queue'
local EVENTS = P .. 'events'
local LEDGER = P .. 'ledger'
local UNREAD = P .. 'ledger:unread'
local STANDING = P .. 'standing'
local WEIGHTS = P .. 'weights'
local METER = P .. 'meter'
local PREEMPTIBLE = P .. 'preemptible'  -- leases that may be evicted
local EVICTED = P .. 'evicted'
local LEAVING = P .. 'leaving'
local ORDER = P .. 'order'
local PREFILLS = P .. 'prefills'
local LONG = P .. 'long'
local CREDITS = P .. 'credits'
local UNCOUNTED = P .. 'uncounted'
local EXPECTED = P .. 'expected'
local WARM = P .. 'warm'
local WARM_BEFORE = P .. 'warm:before'
local ADAPTERS = P .. 'adapters'
local PREFILL = P .. 'prefill'
local LEGS = P .. 'legs'
local LIMIT = P .. 'limit:'
local USERS = P .. 'users:'
local USING = P .. 'using'
local call = redis.call

-- A Redis that is out of memory refuses a script whose first write may need more. Scripts that must go on then begin
-- with a write that does not: elections (leaders empty the ledger stream), renewals (all that runs would end), sweeps.
local function even_when_full() call('HDEL', META, '') end

-- Leaders write under the pool's epoch, and any other is refused: a lower one was superseded, a higher one means that
-- state was lost and no leader has been elected since.
local function fenced(epoch)
  return tonumber(call('HGET', META, 'epoch') or -1) ~= tonumber(epoch)
end
