"""How requests and ledger records are written into Redis, and read back.

Hot path: one msgspec call per record. An *entry* is what ``held`` and ``queue`` keep for a request: fourteen words that
scripts may read, a space, and the record (JSON of a :class:`StoredRequest`), which is opaque to them::

    attempt entitlement class backend kv charge work bytes queued_ms granted_ms gateway seq served note
    {"v":3,"pre":1200,...}

The record begins with the entry's format and what it takes of a prefill credit [prompt tokens]: of what waits what it
will take, of a lease what it holds (0: its replica has no credit, or its first token has come). Older ones are read: 2
held none, 1 had neither class nor served, and its records (and the first of 2) no format. What is newer is not: it is
ended when its lease does, with what its record tells. Both stand there because trees that know of no formats take them
for further fields of the record: they can follow. So may ``"uncounted"``: up to which point the lease's prompt does not
count against the credit (:mod:`scheduling.core.placement.cached_prompts`).

Names (entitlement, backend, gateway) are slugs without spaces; "-" stands for an empty word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from typing import Any
from urllib.parse import quote, unquote

import msgspec

from scheduling.core.ledger.record import LedgerRecord, sane
from scheduling.core.ledger.slo import judged
from scheduling.core.outcomes import Outcome, Reason, outcome_of
from scheduling.core.types import QueuedRequest
from scheduling.state.notices import (
    CancelNotice,
    CompletionNotice,
    EvictionNotice,
    GrantNotice,
    PreemptionNotice,
    RefusalNotice,
    SupersededNotice,
)
from scheduling.state.types import ENTRY_FORMAT, Attempts, Offer, RequestFacts, StoredRequest

_encoder = msgspec.json.Encoder()
_request_decoder = msgspec.json.Decoder(StoredRequest)
_ledger_decoder = msgspec.json.Decoder(LedgerRecord)
_attempts_decoder = msgspec.json.Decoder(dict[str, Attempts])

_HEAD = b'{"v":%d,"pre":%d,'
_HEADED = re.compile(rb'\{(?:"v":\d+,)?(?:"pre":(\d+),)?')
_UNCOUNTED = re.compile(rb'"uncounted":"([0-9a-f]+)",')
_SEQUENCES = re.compile(rb'"sequences":(\d+)')
_FORMAT = re.compile(rb'\{"v":(\d+)')
_FORMAT_1 = re.compile(rb"(\d+ \S+) (\S+(?: \d+){6} \S+ \d+) (\S+ \{.*)", re.DOTALL)

_REASONS = frozenset(Reason)
_EMPTY: dict[str, Any] = {"str": "", "int": 0, "float": 0.0, "bool": False}
# what a ledger record of another version may lack
_NOTHING = {f.name: _EMPTY.get(str(f.type)) for f in fields(LedgerRecord) if f.default is MISSING}

_OPERATOR = "operator"
_COMPLETED = "completed"
_PREEMPTED = "preempted"
DIRECT = "direct"  # policy of a request that found a free slot
LEADERLESS = (
    "leaderless",
    "nobody leads the pool: by class, then arrival",
)  # of one that scripts granted by themselves


def encode_request(stored: StoredRequest) -> bytes:
    """A record, as of an entry that holds no prefill credit; scripts and ``encode_entry`` write what it holds."""
    return _HEAD % (ENTRY_FORMAT, 0) + _encoder.encode(stored)[1:]


def decode_request(data: bytes) -> StoredRequest:
    """Raises ``msgspec.ValidationError`` for anything else than what ``encode_request`` wrote."""
    return _request_decoder.decode(data)


def encode_ledger(record: LedgerRecord) -> bytes:
    return _encoder.encode(record)


def decode_ledger(data: bytes) -> LedgerRecord:
    """Decodes a ledger record, also of another version: unknown fields are dropped, missing ones are empty, but a
    request id and an end are required. Raises ValueError (``msgspec.ValidationError`` is one)."""
    try:
        return _ledger_decoder.decode(data)
    except msgspec.ValidationError:
        fields = msgspec.json.decode(data, type=dict[str, Any])
        if not fields.get("request_id") or not fields.get("done_s"):
            raise
        return msgspec.convert(_NOTHING | {"received_s": fields["done_s"]} | fields, LedgerRecord)


def encode_attempts(attempts: Mapping[str, Attempts]) -> bytes:
    return _encoder.encode(dict(attempts))


def decode_attempts(data: bytes) -> dict[str, Attempts]:
    """Raises ``msgspec.ValidationError`` for anything else than what ``encode_attempts`` wrote."""
    return _attempts_decoder.decode(data)


def encode_note(policy: str, why: str) -> str:
    """Policy and grant reason as one word without spaces."""
    if not why:
        return policy or "-"
    return quote(f"{policy}|{why}", safe="|@:,;=()/.")


def decode_note(note: str) -> tuple[str, str]:
    """``(policy, why)`` of a note."""
    if note == "-":
        return "", ""
    policy, _, why = unquote(note).partition("|")
    return policy, why


def encode_cancel(request_id: str) -> str:
    """What an operator's cancellation publishes on the channel of the gateway that has the request."""
    return f"{request_id} 0 - {_OPERATOR}"


def encode_completion(request_id: str, secret: str, completion: bytes) -> str:
    """What a gateway publishes that was told of the end of a request which another one holds."""
    return f"{request_id} 0 - {_COMPLETED} {secret} {completion.decode()}"


def encode_refusal(request_id: str, attempt: int, reason: Reason) -> str:
    """What a leader publishes on the channel of the gateway that has a request which waits in vain."""
    return f"{request_id} {attempt} - {reason.value}"


def encode_preemption(request_id: str, attempt: int, backend: str, computed: int) -> str:
    """What a leader publishes on the channel of the gateway that has a request whose prefill it interrupts. A gateway
    that knows of none reads a grant that it has already."""
    return f"{request_id} {attempt} {backend} {_PREEMPTED} {computed}"


def encode_homes(loads: bool, replicas: Iterable[str]) -> str:
    """What scripts read of an adapter: whether a replica that lacks it may be asked to load it, and who has it."""
    return f"{int(loads)} " + "".join(f"{name} " for name in sorted(replicas))


Notice = (
    GrantNotice | EvictionNotice | SupersededNotice | PreemptionNotice | CancelNotice | RefusalNotice | CompletionNotice
)


def decode_notice(payload: bytes) -> Notice:
    """What ``grant``, an eviction or an operator published on a gateway's channel. Raises ValueError for anything
    else."""
    request_id, attempt, backend, note, *more = payload.decode().split(" ", 4)
    if backend == "-" and note == _OPERATOR:
        return CancelNotice(request_id)
    if backend == "-" and note == _COMPLETED:
        secret, completion = more[0].split(" ", 1)
        return CompletionNotice(request_id, secret, completion.encode())
    if backend == "-" and note == Reason.NO_ADAPTER:
        return RefusalNotice(request_id, int(attempt), Reason.NO_ADAPTER)
    if backend == "-" and note == Reason.SUPERSEDED:
        return SupersededNotice(request_id, int(attempt), int(more[0]))
    if backend == "-":
        return EvictionNotice(request_id, int(attempt))
    if note == _PREEMPTED:
        return PreemptionNotice(request_id, int(attempt), backend, int(more[0]))
    policy, why = decode_note(note)
    return GrantNotice(request_id, int(attempt), backend, policy, why, int(more[0]) if more else 0)


def encode_offer(offer: Offer) -> str:
    """What scripts say of a ready replica."""
    return " ".join(map(str, offer))


def decode_offer(words: str) -> Offer:
    """Raises ValueError for anything else."""
    return Offer(*map(int, words.split(" ")))


@dataclass(frozen=True, slots=True)
class Entry:
    """A parsed entry of ``held`` (``granted_ms`` > 0) or ``queue``."""

    attempt: int
    entitlement: str
    service_class: str
    backend: str
    kv: int
    charge: int
    work: int
    body_bytes: int
    queued_ms: int
    granted_ms: int
    gateway: str
    seq: int
    served: int  # tokens of it that were metered so far
    note: str
    record: bytes
    prefill: int = 0  # what it holds of a prefill credit, or, waiting, will take of one [prompt tokens]

    @property
    def sequences(self) -> int:
        """That its engine runs for it; of records of versions that knew of none: 1."""
        found = _SEQUENCES.search(self.record)
        return 1 if found is None else int(found[1])

    def queued_request(self) -> QueuedRequest:
        """The request as ordering may know it, under the attempt and arrival number that scripts gave it, and with its
        times in state time: as long before or after a script took the record as its gateway said when it sent it."""
        return self.read()[0]

    def read(self) -> tuple[QueuedRequest, RequestFacts]:
        """``queued_request``, and what the ledger needs beside it."""
        stored = decode_request(self.record)
        r, sent_s = stored.request, stored.sent_s
        if not sent_s:
            return replace(r, attempt=self.attempt, seq=self.seq), stored.facts
        taken_ms = self.granted_ms if self.note == DIRECT or not self.queued_ms else self.queued_ms
        by_s = taken_ms / 1000 - sent_s
        return replace(
            r,
            attempt=self.attempt,
            seq=self.seq,
            arrival_s=r.arrival_s + by_s,
            ttft_deadline_s=_later(r.ttft_deadline_s, by_s),
            ttlt_deadline_s=_later(r.ttlt_deadline_s, by_s),
            expires_s=_later(r.expires_s, by_s),
            hint_deadline_s=_later(r.hint_deadline_s, by_s),
            leaves_s=_later(r.leaves_s, by_s),
        ), stored.facts


def _later(at_s: float | None, by_s: float) -> float | None:
    return None if at_s is None else at_s + by_s


def decode_entry(data: bytes) -> Entry:
    """Raises ValueError for anything that no script wrote."""
    if (old := _FORMAT_1.fullmatch(data)) is not None:
        data = b"%b - %b 0 %b" % old.groups()
    words = data.split(b" ", 14)
    if len(words) != 15:
        raise ValueError(f"an entry has 14 words and a record, this has {len(words)} parts")
    if (format_ := _FORMAT.match(words[14])) is not None and int(format_[1]) > ENTRY_FORMAT:
        raise ValueError(f"an entry of format {format_[1].decode()}, and this version reads up to {ENTRY_FORMAT}")
    text = [w.decode() for w in words[:14]]
    prefill = _HEADED.match(words[14])
    if prefill is not None and prefill[1] is not None:
        prefill_tokens = int(prefill[1])
    else:
        prefill_tokens = decode_request(words[14]).request.prefill_tokens if text[3] == "-" else 0
    return Entry(
        attempt=int(text[0]), entitlement=text[1], service_class=text[2], backend="" if text[3] == "-" else text[3],
        kv=int(text[4]), charge=int(text[5]), work=int(text[6]), body_bytes=int(text[7]), queued_ms=int(text[8]),
        granted_ms=int(text[9]), gateway="" if text[10] == "-" else text[10], seq=int(text[11]), served=int(text[12]),
        note=text[13], record=words[14], prefill=prefill_tokens,
    )  # fmt: skip


def _told_by_record(data: bytes) -> Entry:
    """An entry whose words cannot be read. Raises ValueError where its record cannot either."""
    record = data[data.find(b"{") :]
    request = decode_request(record).request
    return Entry(
        attempt=request.attempt, entitlement=request.entitlement, service_class=request.service_class, backend="",
        kv=request.kv_tokens, charge=0, work=0, body_bytes=0, queued_ms=0, granted_ms=0, gateway=request.gateway,
        seq=request.seq, served=0, note="-", record=record,
    )  # fmt: skip


def encode_entry(e: Entry) -> bytes:
    """The same bytes a script writes."""
    head = (
        f"{e.attempt} {e.entitlement} {e.service_class} {e.backend or '-'} {e.kv} {e.charge} {e.work} {e.body_bytes} "
        f"{e.queued_ms} {e.granted_ms} {e.gateway or '-'} {e.seq} {e.served} {e.note} "
    )
    return head.encode() + _HEAD % (ENTRY_FORMAT, e.prefill) + _HEADED.sub(b"", e.record, count=1)


def with_uncounted(record: bytes, point: str) -> bytes:
    """The record of a lease of whose prompt what is up to that point does not count against a prefill credit."""
    head = _HEADED.match(record)
    assert head is not None, "a record has a head"
    return record[: head.end()] + b'"uncounted":"%b",' % point.encode() + record[head.end() :]


def uncounted_point(record: bytes) -> str:
    """That point; empty: all of it counts."""
    head = _HEADED.match(record)
    found = None if head is None else _UNCOUNTED.match(record, head.end())
    return "" if found is None else found[1].decode()


def place_of(request_id: str, e: Entry) -> str:
    """Where a waiting request is in the order that scripts keep: sorted by text, by arrival within an entitlement."""
    return f"{e.entitlement} {e.seq:015} {request_id}"


def swept_record(pool: str, entry: Entry, done_ms: int, reason: str = Reason.GATEWAY_LOST) -> LedgerRecord:
    """The ledger record of a request that its gateway abandoned: everything but what it produced since its gateway last
    renewed it is known."""
    request, facts = entry.read()
    input_tokens, output_tokens = _used(entry, request, facts)
    policy, why = decode_note(entry.note)
    outcome = outcome_of(Reason(reason)) if reason in _REASONS else Outcome.FAILED  # another version's reason is kept
    return judged(
        LedgerRecord(
            request_id=request.id, pool=pool, model=facts.model, tenant=request.tenant, tier=request.tier,
            entitlement=request.entitlement, key_id=facts.key_id, gateway=request.gateway,
            outcome=outcome, reason=reason, status=0, streamed=facts.streamed,
            attempts=entry.attempt, backend=entry.backend, policy=policy, why=why,
            input_tokens_est=request.input_tokens, output_tokens_est=request.output_tokens,
            output_bound=request.output_bound, input_tokens=input_tokens, output_tokens=output_tokens,
            received_s=request.arrival_s, queued_s=entry.queued_ms / 1000 if entry.queued_ms else None,
            granted_s=entry.granted_ms / 1000 if entry.granted_ms else None,
            first_token_s=None, done_s=done_ms / 1000, ttft_slo_s=facts.slo.ttft_s, tbt_slo_s=facts.slo.tbt_s,
            ttlt_slo_s=facts.slo.ttlt_s, slo_met=None, trace=facts.trace, user=facts.user,
            project=facts.project, sequences=request.sequences,
        )
    )  # fmt: skip


def _used(entry: Entry, request: QueuedRequest, facts: RequestFacts) -> tuple[int, int]:
    """Tokens of prompt and answer: the prompt as estimated, as where an engine dies before it says, and of the answer
    what its gateway told. Of a held request what it may use at most, as where its completion never comes."""
    if not entry.backend:
        return 0, 0
    if facts.held:
        return request.input_tokens, request.output_bound
    return request.input_tokens, max(0, entry.served - request.input_tokens)


def decode_ledger_fields(pool: str, fields: list[Any]) -> LedgerRecord:
    """One entry of the ledger stream: ``r <record>`` as a gateway wrote it, with ``after gateway_lost`` where the
    request was swept before, ``swept <entry> at <ms> as <reason>``, or ``unread <entry> of <request> at <ms>``, of
    which the record tells what there is to tell.

    Raises ValueError (``msgspec.ValidationError`` is one) for anything else.
    """
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    if b"r" in named:
        return sane(decode_ledger(named[b"r"]))
    if {b"swept", b"at"} <= named.keys():
        reason = named.get(b"as", b"gateway_lost").decode()
        return swept_record(pool, decode_entry(named[b"swept"]), int(named[b"at"]), reason)
    if {b"unread", b"at"} <= named.keys():
        return swept_record(pool, _told_by_record(named[b"unread"]), int(named[b"at"]))
    raise ValueError(f"a ledger entry has the fields r, or swept, at and as; this has {sorted(named)}")


def taken(fields: list[Any], record: LedgerRecord) -> int:
    """Tokens that an entry of the ledger stream says its request took from its bucket: what it used, or its charge
    where a dead gateway could not say, nothing if it waited then. Nothing more if that gateway says it later."""
    named = dict(zip(fields[::2], fields[1::2], strict=True))
    if b"after" in named:
        return 0
    if b"swept" in named:
        entry = decode_entry(named[b"swept"])
        return entry.charge if entry.backend else 0
    return record.input_tokens + record.output_tokens
