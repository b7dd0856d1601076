-- Everything but the requests themselves, at one instant. -> {now_ms, meta, ready, totals, buckets, ledger length,
-- standing, meter, counts, expected}: leases, held, waiting, queue, leaving, evicted, ledger entries that could not be read
return {
  now_ms(), call('HGETALL', META), offers(), call('HGETALL', TOTALS), call('HGETALL', BUCKETS),
  call('XLEN', LEDGER), call('HGETALL', STANDING), call('HGETALL', METER),
  {call('ZCARD', LEASES), call('HLEN', HELD), call('ZCARD', WAITING), call('HLEN', QUEUE), call('ZCARD', LEAVING),
    call('HLEN', EVICTED), call('XLEN', UNREAD)}, call('HGETALL', EXPECTED),
}
