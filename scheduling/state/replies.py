"""How the answers of scripts are read: from Redis words to the types of :mod:`scheduling.state.types`."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

from scheduling.core.admission.rule import refill
from scheduling.core.outcomes import Reason
from scheduling.core.scheduler.prefill_preemption import LongPrompt
from scheduling.state import codec
from scheduling.state.snapshot import make_snapshot
from scheduling.state.types import (
    Admission,
    AdmissionStatus,
    BucketLevel,
    Counts,
    Event,
    EventKind,
    LimitLeft,
    PoolAudit,
    PoolSnapshot,
    Renewal,
    RenewStatus,
)

log = logging.getLogger("quartermaster.state")

_STATUS = {s.value.encode(): s for s in AdmissionStatus}


def read_reason(text: str) -> Reason:
    """How somebody ended a request; a reason of another version takes the lease away, like any that is not ours."""
    try:
        return Reason(text)
    except ValueError:
        return Reason.LEASE_LOST


def long_prompts(reply: list[Any]) -> list[LongPrompt]:
    """``{id, entry, ...}``. What cannot be read is left out: ``sweep`` ends it."""
    found = []
    for text in reply[1::2]:
        with suppress(ValueError):
            entry = codec.decode_entry(text)
            found.append(LongPrompt(entry.queued_request(), entry.backend, entry.prefill, entry.granted_ms / 1000))
    return found


def admission(reply: list[Any]) -> Admission:
    """``{status, backend or reason, position or retry_ms, inflight, level or '', seq, attempt, prefill}``, and with
    limits of a key or user ``{..., what is left of them, which one refused it}``."""
    if len(reply) > 8:
        number, _, what = reply[9].decode().partition(" ")
        over = (int(number) - 1, what) if what else None
        return replace(admission(reply[:8]), limits=tuple(map(_left, reply[8].decode().split(";"))), over=over)
    status = _STATUS[reply[0]]
    level = float(reply[4]) if reply[4] else None
    if status is AdmissionStatus.GRANTED:
        return Admission(
            status, backend=reply[1].decode(), inflight=reply[3], level_tokens=level, seq=reply[5], attempt=reply[6],
            prefill=reply[7],
        )  # fmt: skip
    if status is AdmissionStatus.QUEUED:
        return Admission(
            status, position=reply[2], inflight=reply[3], level_tokens=level, seq=reply[5], attempt=reply[6],
            wakes_s=int(reply[1]) / 1000 if reply[1] else None,
        )  # fmt: skip
    retry_s = reply[2] / 1000 if status is AdmissionStatus.REFUSED and reply[2] >= 0 else None
    reason = read_reason(reply[1].decode()) if reply[1] else None
    return Admission(
        status, reason=reason, retry_s=retry_s, inflight=reply[3], level_tokens=level, seq=reply[5], attempt=reply[6]
    )


def _left(words: str) -> LimitLeft:
    requests, tokens, inflight = words.split(" ")
    return LimitLeft(
        None if requests == "-" else float(requests),
        None if tokens == "-" else float(tokens),
        None if inflight == "-" else int(inflight),
    )


def renewal(item: tuple[str, int, int], words: bytes) -> Renewal:
    status, _, rest = words.decode().partition(" ")
    request_id, attempt, _ = item
    if status == RenewStatus.HOLDS:
        backend, note, prefill = rest.split(" ")
        policy, why = codec.decode_note(note)
        return Renewal(
            request_id, attempt, RenewStatus.HOLDS, backend=backend, policy=policy, why=why, prefill=int(prefill)
        )
    if status == RenewStatus.ENDED:
        return Renewal(request_id, attempt, RenewStatus.ENDED, reason=read_reason(rest))
    return Renewal(request_id, attempt, RenewStatus(status))


def event(raw: list[Any]) -> Event:
    """One notification. What cannot be read becomes a LEFT of nobody, so that reading goes on after it."""
    event_id = raw[0].decode()
    try:
        kind, value = EventKind(raw[1][0].decode()), raw[1][1]
        if kind is EventKind.QUEUED:
            request_id, _, entry = value.partition(b" ")
            request = codec.decode_entry(entry).queued_request()
            return Event(event_id, kind, request=request, request_id=request_id.decode())
        if kind is EventKind.LEFT:
            return Event(event_id, kind, request_id=value.decode())
        if kind is EventKind.REPORT:
            return Event(event_id, kind, attempts=codec.decode_attempts(value))
        backend, _, why = value.decode().partition(" ")
        if kind is EventKind.PAUSED:
            ms, refused, why = why.split(" ", 2)
            return Event(event_id, kind, backend=backend, why=why, pause_ms=int(ms), refused=refused == "1")
        return Event(event_id, kind, backend=backend, why=why)
    except ValueError as e:
        log.error("event %s cannot be read: %s", event_id, e)
        return Event(event_id, EventKind.LEFT)


def _words(flat: list[bytes]) -> dict[str, str]:
    text = [w.decode() for w in flat]
    return dict(zip(text[::2], text[1::2], strict=True))


def snapshot(reply: list[Any]) -> PoolSnapshot:
    """``{now_ms, meta, ready, totals, buckets, ledger length, standing, meter, counts, expected}``, hashes as flat
    lists."""
    now_ms = int(reply[0])
    meta, ready, totals, buckets = (_words(flat) for flat in reply[1:5])
    standing, meter = (_words(flat) for flat in reply[6:8])
    return make_snapshot(
        now_ms, meta, ready, totals, buckets, reply[5], standing, meter, Counts(*reply[8]), _words(reply[9])
    )


def beginnings(flat: list[bytes]) -> dict[str, dict[str, tuple[int, int]]]:
    """``uncounted`` by replica: of how many prompts in flight each beginning is, and its tokens."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for name, value in _words(flat).items():
        backend, _, point = name.rpartition(" ")
        prompts, _, tokens = value.partition(" ")
        with suppress(ValueError):  # the leader writes it anew
            found.setdefault(backend, {})[point] = int(prompts), int(tokens)
    return found


def entry_id(word: bytes) -> tuple[int, int]:
    """The id of a stream's entry: ms, number."""
    ms, _, number = word.partition(b"-")
    return int(ms), int(number)


def audit(reply: list[Any]) -> PoolAudit | None:
    """``{now, born, last id of the ledger, {ent, charge, ...}, buckets}``, or ``{now}``: too much to look through.
    Buckets that are not whole are left out."""
    if len(reply) == 1:
        return None
    now_ms, flat, words = int(reply[0]), reply[3], _words(reply[4])
    reserved = {name.decode(): int(charge) for name, charge in zip(flat[::2], flat[1::2], strict=True)}
    buckets = {}
    for name in {word.rpartition(":")[0] for word in words}:
        with suppress(KeyError, ValueError):
            level, at, rate, depth = (float(words[f"{name}:{f}"]) for f in ("level", "at", "rate", "depth"))
            buckets[name] = BucketLevel(refill(level, at, rate, depth, now_ms), rate, depth)
    return PoolAudit(now_ms, reply[1].decode(), entry_id(reply[2]), reserved, buckets)
