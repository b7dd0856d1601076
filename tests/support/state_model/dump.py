"""Every key of a pool as Redis has it, read in one step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.reference.memory import Dump

HASHES = (
    "meta ready held queue totals buckets standing meter evicted warm warm:before credits adapters using uncounted "
    "expected".split()
)  # fmt: skip
SCORED = "leases waiting weights preemptible leaving prefills long".split()

# ARGV: the pattern of the pool's keys, how far its two streams were read
DUMP = """
local all = {}
local function add(...) all[#all + 1] = redis.call(...) end
for name in string.gmatch('HASHES', '%S+') do add('HGETALL', KEYS[1] .. name) end
for name in string.gmatch('SCORED', '%S+') do add('ZRANGE', KEYS[1] .. name, 0, -1, 'WITHSCORES') end
add('ZRANGE', KEYS[1] .. 'order', 0, -1)
add('XRANGE', KEYS[1] .. 'events', ARGV[2], '+')
add('XRANGE', KEYS[1] .. 'ledger', ARGV[3], '+')
local function of_names(kind, ...)
  local found = {}
  for _, key in ipairs(redis.call('KEYS', ARGV[1] .. kind .. ':*')) do
    local words = {...}
    local command = table.remove(words, 1)
    local name = string.sub(key, #KEYS[1] + #kind + 2)
    found[#found + 1] = {name, redis.call('PTTL', key), redis.call(command, key, unpack(words))}
  end
  all[#all + 1] = found
end
of_names('ended', 'GET')
of_names('limit', 'HGETALL')
of_names('users', 'ZRANGE', 0, -1, 'WITHSCORES')
return all
""".replace("HASHES", " ".join(HASHES)).replace("SCORED", " ".join(SCORED))


# of a replica, and without
_BOUNDS = (("", b"0"), (" longest", b"0"), (" speed", b"1000"), (" cached", b"-1 0"), (" token", b"0"))
_OFFERED = (" longest", " speed", " token")


def _pairs(flat: Sequence[bytes]) -> dict[str, bytes]:
    return {k.decode(): v for k, v in zip(flat[::2], flat[1::2], strict=True)}


def _texts(values: dict[str, bytes]) -> dict[str, str]:
    return {k: v.decode() for k, v in values.items()}


def _ints(values: dict[str, bytes]) -> dict[str, int]:
    return {k: int(v) for k, v in values.items()}


def _floats(values: dict[str, bytes]) -> dict[str, float]:
    return {k: float(v) for k, v in values.items()}


def read_dump(reply: Sequence[Any], read: dict[str, str]) -> Dump:
    """What ``DUMP`` answered. ``read`` is moved to the end of the streams."""
    replies = iter(reply)
    hashes = {name: _pairs(next(replies)) for name in HASHES}
    scored = {name: _pairs(next(replies)) for name in SCORED}
    order, events, ledger, ended, limits, users = replies
    credits = hashes["credits"]
    of_replicas = {k for k in credits if " " not in k}
    assert of_replicas <= hashes["ready"].keys(), "a credit of a replica that may get no work"
    for name, entries in (("events", events), ("ledger", ledger)):
        if entries:
            read[name] = "(" + entries[-1][0].decode()
    assert all(ms > 0 for _, ms, _ in (*limits, *users)), "what is kept of a key or user has no end"
    return Dump(
        meta=_texts(hashes["meta"]),
        adapters=_texts(hashes["adapters"]),
        ready={
            k: b" ".join((v, *(credits.get(k + tail, usual) for tail, usual in _BOUNDS))).decode()
            for k, v in hashes["ready"].items()
        },
        leases=_ints(scored["leases"]),
        held=hashes["held"],
        waiting=_ints(scored["waiting"]),
        queue=hashes["queue"],
        order=[m.decode() for m in order],
        totals=_ints(hashes["totals"]),
        standing=_texts(hashes["standing"]),
        weights=_floats(scored["weights"]),
        meter=_ints(hashes["meter"]),
        preemptible=_ints(scored["preemptible"]),
        prefills=_ints(scored["prefills"]),
        long=_ints(scored["long"]),
        paces={k: v.decode() for k, v in credits.items() if " " in k and not k.endswith(_OFFERED)},
        evicted=hashes["evicted"],
        leaving=_ints(scored["leaving"]),
        warm=_texts(hashes["warm"]),
        warm_before=_texts(hashes["warm:before"]),
        buckets=_floats(hashes["buckets"]),
        limits={name.decode(): _floats(_pairs(values)) for name, _, values in limits},
        users={name.decode(): _ints(_pairs(values)) for name, _, values in users},
        using=_ints(hashes["using"]),
        uncounted=_texts(hashes["uncounted"]),
        expected=_ints(hashes["expected"]),
        events=[(f[0].decode(), f[1]) for _, f in events],
        ledger=[tuple(f) for _, f in ledger],
        ended={name.decode(): reason.decode() for name, _, reason in ended},
    )
