-- The keys of a pool. KEYS[1] is its prefix, `qm:{<pool>}:`: all of them have one hash tag.

local P = KEYS[1]
local META, READY, TOTALS, BUCKETS = P .. 'meta', P .. 'ready', P .. 'totals', P .. 'buckets'
local LEASES, HELD, WAITING, QUEUE = P .. 'leases', P .. 'held', P .. 'waiting', P .. 'queue'
local EVENTS, LEDGER, UNREAD = P .. 'events', P .. 'ledger', P .. 'ledger:unread'
local STANDING, WEIGHTS, METER = P .. 'standing', P .. 'weights', P .. 'meter'
local PREY, EVICTED, LEAVING = P .. 'prey', P .. 'evicted', P .. 'leaving'
local ORDER, PREFILLS, CREDITS = P .. 'order', P .. 'prefills', P .. 'credits'
local WARM, WARM_BEFORE, ADAPTERS = P .. 'warm', P .. 'warm:before', P .. 'adapters'
local LIMIT, USERS, USING = P .. 'limit:', P .. 'users:', P .. 'using'
local call = redis.call

-- A Redis that is out of memory refuses a script whose first write could need more of it. What has to go on then begins
-- with a write that does not: leaders, who move the ledger out; renewals, or all that runs would end; the sweep.
local function even_when_full() call('HDEL', META, '') end

-- Leaders write under the pool's epoch. Any other is refused: a lower one was superseded, a higher one means that the
-- state behind it was lost and nobody has been elected since.
local function fenced(epoch)
  return tonumber(call('HGET', META, 'epoch') or -1) ~= tonumber(epoch)
end
