"""A pool's hashes (``docs/internals/state.md``) read as typed totals, the same for the store and for its reference
model."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from scheduling.core.admission.rule import refill
from scheduling.state import codec
from scheduling.state.standing import read_standing
from scheduling.state.types import BackendTotals, Counts, EntitlementTotals, Offer, PoolSnapshot


def make_snapshot(
    now_ms: int,
    meta: Mapping[str, str],
    ready: Mapping[str, str],
    totals: Mapping[str, str],
    buckets: Mapping[str, str],
    ledger_waiting: int,
    standing: Mapping[str, str],
    meter: Mapping[str, str],
    counts: Counts,
    expected: Mapping[str, str],
) -> PoolSnapshot:
    """The hashes of ``docs/internals/state.md`` as typed totals; levels are those of ``now_ms``, refills included."""
    backends: dict[str, BackendTotals] = {}
    entitlements: dict[str, EntitlementTotals] = {}
    names = {"b": set(ready), "e": {f.rpartition(":")[0] for f in (*buckets, *meter)}}
    for f in totals:
        kind, _, rest = f.partition(":")
        if rest:
            names[kind].add(rest.rpartition(":")[0])
    for name in sorted(names["b"]):
        offer = codec.decode_offer(ready[name]) if name in ready else Offer()
        run, used, work, prefill, owned = (_sum(totals, f"b:{name}:{f}") for f in ("run", "kv", "work", "pre", "own"))
        backends[name] = BackendTotals(
            name in ready, offer.slots, offer.kv_tokens, run, used, work, offer.prefill_credit, prefill,
            prefill_owned=owned, longest=offer.longest, speed=offer.speed, cache_trust=offer.cache_trust,
            uncounted_most=offer.uncounted_most, expected_tokens=int(expected.get(f"{name} tokens", 0)),
            prompt_tokens=int(expected.get(f"{name} prompts", 0)), token_us=offer.token_us,
        )  # fmt: skip
    for name in sorted(names["e"]):
        run, wait, kv = (_sum(totals, f"e:{name}:{f}") for f in ("run", "wait", "kv"))
        level: float | None = None
        if f"{name}:level" in buckets:
            with suppress(KeyError, ValueError):  # a bucket that is not whole: its level is not known
                bucket = {f: float(buckets[f"{name}:{f}"]) for f in ("level", "at", "rate", "depth")}
                level = refill(bucket["level"], bucket["at"], bucket["rate"], bucket["depth"], now_ms)
        service = buckets.get(f"{name}:service_ms")
        served, refused, refusals = (int(meter.get(f"{name}:{f}", 0)) for f in ("served", "refused", "refusals"))
        entitlements[name] = EntitlementTotals(
            run, wait, kv, level, None if service is None else float(service), served, refused, refusals
        )
    return PoolSnapshot(
        now_ms=now_ms,
        epoch=int(meta.get("epoch", 0)),
        leader=meta.get("leader", "") if int(meta.get("leader_until", 0)) > now_ms else "",
        rebuilding_ms=max(0, int(meta.get("rebuild_until", 0)) - now_ms),
        service_ms=float(meta["service_ms"]) if "service_ms" in meta else None,
        running=_sum(totals, "run"),
        waiting=_sum(totals, "wait"),
        waiting_bytes=_sum(totals, "bytes"),
        ledger_waiting=ledger_waiting,
        backends=backends,
        entitlements=entitlements,
        standings={name: read_standing(words) for name, words in standing.items()},
        counts=counts,
        rebuilt=int(meta.get("rebuilt", 0)),
        rebuilt_ms=int(meta.get("rebuilt_at", 0)),
        lost_ms=int(meta.get("lost", 0)),
        kept=int(meta["kept"]) if "kept" in meta else None,
        waking_ms=int(meta.get("waking", 0)),
    )


def _sum(totals: Mapping[str, str], name: str) -> int:
    """A total; -1, which no total can be, for what is not a number, so that the leader rewrites it."""
    try:
        return int(totals.get(name, "0"))
    except ValueError:
        return -1
