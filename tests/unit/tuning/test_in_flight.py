"""What is in flight loads a pool as much as what has ended, in calibrations, replays and studies."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import datetime, timedelta

import pytest
import redis
from django.utils import timezone

from controlplane.tuning import in_flight, loop, proposals, recent, replicas, studies
from scheduling.core.types import Slo
from scheduling.simulator.recording import IN_FLIGHT, Recorded, Recording
from telemetry.ledger import writer
from telemetry.ledger.queue import QueueStore
from telemetry.models import Calibration
from tenants import services, tuning
from tenants.models import PolicyVersion, Pool, Study
from tests.support.live_entries import entry
from tests.support.ports import free_port
from tests.support.redis_server import RedisServer
from tests.support.telemetry_world import record
from tests.support.tuning_world import ANN, traffic, trusted, tuned

pytestmark = pytest.mark.django_db
QUEUE, HELD = "qm:{llama}:queue", "qm:{llama}:held"


@pytest.fixture
def state(redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[redis.Redis]:
    """The pool's Redis."""
    store = QueueStore(redis_server.url)
    monkeypatch.setattr(in_flight, "queue_store", lambda: store)
    client = redis.Redis.from_url(redis_server.url)
    yield client
    client.delete(QUEUE, HELD)
    client.close()


def long_served(pool: Pool) -> None:
    """The policy of now has served for two hours."""
    version = tuning.version_now(pool)
    PolicyVersion.objects.filter(pk=version.pk).update(at=timezone.now() - timedelta(hours=2))


def overload(pool: Pool, state: redis.Redis, now: datetime, *, seconds: float = 900.0, rate: float = 1.5) -> None:
    """What a pool at twice its capacity left behind up to ``now``: the ledger of what ended, and Redis of the rest."""
    draw = random.Random(7)
    sent = [
        Recorded(
            round(n / rate, 3), draw.randint(200, 1500), draw.randint(100, 400), "acme", tier, output_bound=400,
            wait_s=0.0, ttft_s=0.0,
        )
        for n, tier in enumerate(draw.choices(["premium", "standard"], k=int(seconds * rate)))
    ]  # fmt: skip
    tiers = recent.tiers_of({"premium", "standard"})
    served = replicas.as_traffic(pool, Recording(pool.slug, tiers, tuple(sent)))
    assert served is not None
    began = now.timestamp() - seconds
    ended = []
    for n, (row, life) in enumerate(zip(sent, served.serve(replicas.serving_of(pool)), strict=True)):
        at, expected = began + row.arrival_s, float(row.output_tokens)
        granted, done = at + life.wait_s, at + life.ttlt_s
        if done < now.timestamp():
            ended.append(
                record(
                    n, pool="llama", tier=row.tier, entitlement="", input_tokens=row.input_tokens,
                    output_tokens=row.output_tokens, output_tokens_est=expected, output_bound=400, received_s=at,
                    queued_s=at, granted_s=granted, first_token_s=at + life.ttft_s, done_s=done,
                )
            )  # fmt: skip
            continue
        runs = granted < now.timestamp()
        made = entry(
            f"req_{n:024x}", "acme", "gw-1", int(1000 * granted) if runs else 0, arrival_s=at, tier=row.tier,
            entitlement="acme", input_tokens=row.input_tokens, output_tokens=expected, output_bound=400,
        )  # fmt: skip
        state.hset(HELD if runs else QUEUE, f"req_{n:024x}", made)
    writer.write(ended)


def test_in_an_overload_simulated_figures_are_compared_under_the_load_that_there_was(
    pool: Pool, state: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    """Many wait until they are too late for their tier, and let others go first: those have ended, in good time.

    Arrivals are whole milliseconds, which the ledger keeps as they are: in an overload, who is late hangs on less."""
    now = timezone.now().replace(microsecond=0)
    pool = services.set_policy(actor=ANN, pool=pool, policy="unified", params={})
    trusted(pool)
    Calibration.objects.update(overhead_s=0.0)  # as what served them had none
    long_served(pool)
    overload(pool, state, now)
    waiting, running = state.hlen(QUEUE), state.hlen(HELD)
    assert waiting > 100
    assert running > 0
    told = replicas.trust(pool, now - timedelta(hours=1), now)
    assert told is not None
    assert told.points < 0.5
    assert told.worst < 0.005

    monkeypatch.setattr(replicas, "in_flight", lambda *_: [])  # as if only ended requests had come
    blind = replicas.trust(pool, now - timedelta(hours=1), now)
    assert blind is not None
    assert max(blind.worst / replicas.TRUSTED, blind.points / replicas.TRUSTED_POINTS) > 3


def test_a_recording_has_what_waits_and_what_runs_as_far_as_it_has_come(pool: Pool, state: redis.Redis):
    now = timezone.now()
    traffic(20, now - timedelta(seconds=60))
    at = now.timestamp()
    state.hset(QUEUE, "req_w", entry("req_w", "acme", "gw-1", arrival_s=at - 9))
    state.hset(HELD, "req_r", entry("req_r", "acme", "gw-1", int(1000 * at) - 3000, served=17, arrival_s=at - 5))
    rows = recent.record("llama", now - timedelta(hours=1)).rows
    assert len(rows) == 22
    waits, runs = rows[-2:]
    assert (waits.outcome, runs.outcome) == (IN_FLIGHT, IN_FLIGHT)
    assert (waits.wait_s, runs.wait_s) == (None, pytest.approx(2.0, abs=0.01))
    assert (waits.output_tokens, runs.output_tokens) == (0, 7), "what was served has its 10 input tokens in it"
    assert waits.ttlt_s == pytest.approx(9.0, abs=2.0), "its age"
    assert not any(row.ran or row.turned_away for row in (waits, runs)), "nobody knows yet how they end"
    found = replicas.as_traffic(pool, recent.record("llama", now - timedelta(hours=1)))
    assert found is not None
    assert [request.output_tokens for request in found.requests()[-2:]] == [20, 20], "as was expected"
    assert len(recent.record("llama", now - timedelta(hours=1), now - timedelta(seconds=30)).rows) == 20


def test_what_ends_while_a_recording_is_made_is_in_it_once(pool: Pool, state: redis.Redis):
    now = timezone.now()
    traffic(20, now)
    ended = f"req_{3:024x}"
    state.hset(HELD, ended, entry(ended, "acme", "gw-1", 1, arrival_s=now.timestamp() - 1))
    rows = recent.record("llama", now - timedelta(hours=1)).rows
    assert len(rows) == 20
    assert not any(row.in_flight for row in rows)


def test_without_redis_nothing_is_calibrated_compared_or_searched(pool: Pool, monkeypatch: pytest.MonkeyPatch):
    now = timezone.now()
    traffic(300, now, rate=2.0)
    trusted(tuned(pool))
    long_served(pool)
    assert replicas.trust(pool, now - timedelta(hours=1), now) is not None, "there is no Redis to ask"
    away = QueueStore(f"redis://127.0.0.1:{free_port()}")
    monkeypatch.setattr(in_flight, "queue_store", lambda: away)
    assert replicas.trust(pool, now - timedelta(hours=1), now) is None
    assert replicas.recalibrate(pool, now - timedelta(hours=1), now) is None
    assert loop.tend("llama") == "Redis does not say what is in flight"
    assert not Study.objects.exists()


def test_a_study_finds_the_same_window_when_what_was_in_flight_has_ended(
    pool: Pool, state: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(studies, "WRITTEN", timedelta(seconds=-2))
    now = timezone.now()
    traffic(300, now - timedelta(seconds=5))
    arrival = now.timestamp() - 2
    for n in range(5):
        state.hset(QUEUE, f"req_w{n}", entry(f"req_w{n}", "acme", "gw-1", arrival_s=arrival, tier="premium"))
    tuned(pool, cpu_share=0.001)
    windows = []
    searched = studies.Search

    def search(found, *rest):  # type: ignore[no-untyped-def]
        windows.append(found.rows)
        return searched(found, *rest)

    monkeypatch.setattr(studies, "Search", search)
    assert loop.tend("llama", now=now).startswith("replayed")
    state.delete(QUEUE)
    writer.write(
        [
            record(f + 900, request_id=f"req_w{f}", received_s=arrival, done_s=now.timestamp() + 30, entitlement="")
            for f in range(5)
        ]
    )
    assert loop.tend("llama", now=now + timedelta(seconds=60)).startswith("replayed")
    assert windows[0] == windows[1]
    assert sum(row.in_flight for row in windows[0]) == 5
    tuning.stop_study(actor=tuning.OPTIMISER, pool=pool, reason="enough")
    assert Study.objects.get().in_flight == [], "it is kept no longer than it is needed"


@pytest.mark.parametrize(
    ("row", "late"),
    [
        ((9.0, None), True),  # has waited longer than a first token may take
        ((4.0, None), False),
        ((9.0, 6.0), True),  # it was granted too late for that
        ((9.0, 1.0), False),  # its first token may have come in time
        ((99.0, 1.0), True),  # even its longest answer would have to be there
    ],
)
def test_what_is_in_flight_is_late_only_where_no_end_can_be_in_time(row: tuple[float, float | None], late: bool):
    age_s, wait_s = row
    asked = Recorded(0.0, 10, 0, "acme", "standard", output_bound=100, wait_s=wait_s, ttlt_s=age_s, outcome=IN_FLIGHT)
    assert replicas._late_already(Slo(ttft_s=5.0, tbt_s=0.2), asked) is late


def test_how_much_traffic_there_is_for_a_replay_is_counted_without_asking_redis(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
):
    """*Policies* asks it again and again, and a queue may be long."""
    asked: list[str] = []
    monkeypatch.setattr(recent, "in_flight", lambda slug, _: asked.append(slug) or [])
    now = timezone.now()
    traffic(20, now - timedelta(seconds=5))
    assert proposals.traffic_so_far(tuned(pool), now)[1] == 20
    assert not asked
