-- Notifications to the leader.

local function notify(kind, value)
  call('XADD', EVENTS, 'MAXLEN', '~', EVENTS_KEPT, '*', kind, value)
end

-- A slot became free: of interest only while somebody waits.
local function notify_free(backend)
  if call('HGET', TOTALS, 'wait') then notify('f', backend) end
end
