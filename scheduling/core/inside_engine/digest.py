"""What a gateway tells the scheduler inside an engine of one request: one short text in its body (``vllm_xargs``).

Fields with a space between them: version, rank, service class, weight, entitlement, seconds left to the first and to
the last token's deadline (``-``: none), seconds per token (``-``), expected output, and the distribution of output
lengths as ``length:probability``. Deadlines are sent as what is left of them, so clocks of hosts need not agree. No
tenant's name is in it: the entitlement is a number that tells entitlements of one pool apart.

What comes in from outside is bounded and checked; a text that is not a digest is a ``ValueError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from math import inf, isfinite
from zlib import crc32

from scheduling.core.types import QueuedRequest, ServiceClass, Slo

ARGUMENT = "quartermaster"  # the name in ``vllm_xargs``
VERSION = "1"
MAX_CHARS = 1024
POINTS = 16  # of the distribution: neighbours are joined at their mean
_FIELDS = 9
_CLASSES = tuple(ServiceClass)
_MOST = 1e9  # of any figure


def encode(request: QueuedRequest, slo: Slo, now_s: float, answers: int = 1) -> str:
    """The digest of a request that is sent to its engine now. An engine that gives several ``answers`` to it runs each
    by itself: what is expected of all together is sent as one's part."""
    fields = [
        VERSION,
        str(request.rank),
        str(_CLASSES.index(request.service_class)),
        f"{request.weight:.4g}",
        str(crc32(request.entitlement.encode())),
        _seconds(None if request.ttft_deadline_s is None else request.ttft_deadline_s - now_s),
        _seconds(None if request.ttlt_deadline_s is None else request.ttlt_deadline_s - now_s),
        _seconds(slo.tbt_s),
        f"{request.output_tokens / answers:.4g}",
    ]
    points: dict[str, float] = {}  # lengths that are written alike are one
    for length, share in condensed([each / answers for each in request.output_lengths], request.output_probabilities):
        written = f"{length:.6g}"
        points[written] = points.get(written, 0.0) + share
    return " ".join([*fields, *(f"{written}:{share:.4g}" for written, share in points.items())])


def decode(
    text: object, name: str, seq: int, arrival_s: float, input_tokens: int, output_bound: int
) -> tuple[QueuedRequest, float | None]:
    """The request as policies know it, and its seconds per token; the rest is what the engine itself knows of it.

    Raises ``ValueError`` that says what is wrong.
    """
    if not isinstance(text, str) or len(text) > MAX_CHARS:
        raise ValueError(f"a digest is a text of at most {MAX_CHARS} letters")
    fields = text.split(" ")
    if fields[0] != VERSION:
        raise ValueError(f"digest of version {fields[0][:8]!r}; this plugin reads {VERSION}")
    if not _FIELDS <= len(fields) <= _FIELDS + POINTS:
        raise ValueError(f"a digest has {_FIELDS} to {_FIELDS + POINTS} fields, not {len(fields)}")
    ttft_s, ttlt_s, pace_s = (_optional(field) for field in fields[5:8])
    if pace_s is not None and pace_s <= 0:
        raise ValueError("seconds per token must be above 0")
    service_class = int(_number(fields[2], 0, len(_CLASSES) - 1))
    lengths, probabilities = _distribution(tuple(fields[_FIELDS:]))
    request = QueuedRequest(
        name, seq, arrival_s, fields[4][:10], "", "", int(_number(fields[1], 0, _MOST)), _number(fields[3], 0, _MOST),
        _CLASSES[service_class], input_tokens, output_bound, max(1.0, _number(fields[8], 0, _MOST)),
        input_tokens + output_bound,
        ttft_deadline_s=None if ttft_s is None else arrival_s + ttft_s,
        ttlt_deadline_s=None if ttlt_s is None else arrival_s + ttlt_s,
        output_lengths=lengths,
        output_probabilities=probabilities,
    )  # fmt: skip
    return request, pace_s


def plain(name: str, seq: int, arrival_s: float, input_tokens: int, output_bound: int, priority: int) -> QueuedRequest:
    """A request without a digest: no deadline, its answer is expected to reach its bound, and its rank is the
    ``priority`` that vLLM was given."""
    return QueuedRequest(
        name, seq, arrival_s, "", "", "", priority, 1.0, ServiceClass.ELASTIC, input_tokens, output_bound,
        float(max(1, output_bound)), input_tokens + output_bound,
    )  # fmt: skip


def condensed(lengths: Sequence[float], probabilities: Sequence[float]) -> list[tuple[float, float]]:
    """At most :data:`POINTS` points with the same mean: neighbours are merged while their probabilities together are at
    most 1 / POINTS."""
    if len(lengths) <= POINTS:
        return list(zip(lengths, probabilities, strict=True))
    points: list[tuple[float, float]] = []
    mass = moment = reached = 0.0
    for length, probability in zip(lengths, probabilities, strict=True):
        mass, moment, reached = mass + probability, moment + length * probability, reached + probability
        if mass > 0 and reached >= (len(points) + 1) / POINTS - 1e-9:
            points.append((moment / mass, mass))
            mass = moment = 0.0
    if mass > 0:
        points.append((moment / mass, mass))
    if len(points) > POINTS:
        (one, p), (two, q) = points[-2:]
        points[-2:] = [((one * p + two * q) / (p + q), p + q)]
    return points


def _seconds(value: float | None) -> str:
    return "-" if value is None or value == inf else f"{value:.6g}"


def _optional(field: str) -> float | None:
    return None if field == "-" else _number(field, -_MOST, _MOST)


def _number(field: str, least: float, most: float) -> float:
    value = float(field[:32])
    if not (isfinite(value) and least <= value <= most):
        raise ValueError(f"{field[:32]!r} is not within {least:g} and {most:g}")
    return value


@lru_cache(maxsize=4096)  # requests of one family are expected to be alike
def _distribution(fields: tuple[str, ...]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    points = [_point(field) for field in fields]
    lengths, total = tuple(length for length, _ in points), sum(probability for _, probability in points)
    if points and (total <= 0 or any(b <= a for a, b in pairwise(lengths))):
        raise ValueError("output lengths must increase and have probabilities")
    return lengths, tuple(probability / total for _, probability in points)


def _point(field: str) -> tuple[float, float]:
    length, _, probability = field.partition(":")
    return _number(length, 0, _MOST), _number(probability, 0, 1)
