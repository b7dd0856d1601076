-- Everything but the requests themselves, at one instant. -> {now_ms, meta, ready, totals, buckets, ledger length, standing, meter}
return {
  now_ms(), call('HGETALL', META), call('HGETALL', READY), call('HGETALL', TOTALS), call('HGETALL', BUCKETS),
  call('XLEN', LEDGER), call('HGETALL', STANDING), call('HGETALL', METER),
}
