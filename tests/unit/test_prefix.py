"""Prompts that begin alike share a prefix; tenants never do; and replicas that ran it are preferred within bounds."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.compose import make_policy
from scheduling.core.estimate.tokens import Calibration
from scheduling.core.registry import PolicyError, make_routing
from scheduling.core.scheduler import Scheduler
from scheduling.core.step_time import StepTime
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, KeySpec, PoolSpec, PrefixCache
from scheduling.gateway.auth import Access
from scheduling.gateway.cache_salt import prefix_key
from scheduling.gateway.estimates import make_estimate, make_queued
from scheduling.gateway.headers import Limits
from scheduling.gateway.prefix import LEAST_BYTES, MOST_BYTES, prefix_of
from scheduling.gateway.prepare import parse, prepare
from scheduling.simulator.batches import make_engine
from scheduling.simulator.cluster import Cluster
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.kernel import to_fs
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request
from scheduling.state import codec
from scheduling.state.types import StoredRequest
from tests.gateway_world import TIER
from tests.scheduling_world import backend_view, pool_view, waiting
from tests.state_world import FACTS

SYSTEM = "You answer questions about the harbour of a small town. " * 8
LONG = "Tell me what happened in the year of the great flood, from the beginning. " * 20


def key_of(tenant: str, mode: PrefixCache = PrefixCache.ISOLATED, secret: bytes = b"secret") -> bytes:
    return prefix_key(secret, "p", tenant, mode)


def of_chat(*messages: tuple[str, str], tenant: str = "acme", model: str = "m") -> int:
    body = {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages]}
    return prefix_of(parse(json.dumps(body).encode(), True), key_of(tenant), model)


def of_prompt(prompt: str | list[int], tenant: str = "acme") -> int:
    return prefix_of(parse(json.dumps({"model": "m", "prompt": prompt}).encode(), False), key_of(tenant), "m")


def test_requests_with_the_same_system_message_share_a_prefix_whatever_they_ask() -> None:
    assert of_chat(("system", SYSTEM), ("user", "hi")) == of_chat(("system", SYSTEM), ("user", "what is this?")) != 0
    assert of_chat(("system", SYSTEM), ("user", "hi")) != of_chat(("system", SYSTEM + "!"), ("user", "hi"))


def test_a_conversation_keeps_its_prefix_while_it_grows() -> None:
    first = of_chat(("system", "Be brief."), ("user", LONG))
    assert first == of_chat(("system", "Be brief."), ("user", LONG), ("assistant", "No."), ("user", "Why?")) != 0


def test_tenants_and_models_never_share_a_prefix() -> None:
    found = {of_chat(("user", LONG), tenant=t, model=m) for t in ("acme", "globex") for m in ("m", "other")}
    assert len(found) == 4


def test_tenants_share_a_prefix_where_their_pool_shares_its_caches() -> None:
    body = parse(json.dumps({"model": "m", "prompt": LONG}).encode(), False)
    for mode, same in (
        (PrefixCache.SHARED, True),
        (PrefixCache.ISOLATED, False),
        (PrefixCache.UNSALTED, False),
    ):
        acme, globex = (prefix_of(body, key_of(tenant, mode), "m") for tenant in ("acme", "globex"))
        assert (acme == globex) is same


def test_who_reads_redis_cannot_compute_a_prefix_without_the_secret() -> None:
    body = parse(json.dumps({"model": "m", "prompt": LONG}).encode(), False)
    assert prefix_of(body, key_of("acme"), "m") != prefix_of(body, key_of("acme", secret=b"guess"), "m")


def test_a_clients_own_salt_divides_its_prefixes_as_the_engines_cache_does() -> None:
    found = set()
    for salt in (None, "one", "two"):
        body = {"model": "m", "prompt": LONG} | ({} if salt is None else {"cache_salt": salt})
        found.add(prefix_of(parse(json.dumps(body).encode(), False), key_of("acme"), "m"))
    assert len(found) == 3


def test_short_prompts_have_no_prefix() -> None:
    assert of_chat(("user", "hello")) == 0
    assert of_prompt("x" * (LEAST_BYTES - 1)) == 0
    assert of_prompt("x" * LEAST_BYTES) != 0


def test_token_ids_have_prefixes_as_well() -> None:
    ids = list(range(1000))
    assert of_prompt(ids) == of_prompt(ids[: MOST_BYTES // 4]) != 0
    assert of_prompt(ids) != of_prompt(ids[1:])


def test_parts_and_empty_messages_are_read_too() -> None:
    body = {
        "model": "m",
        "messages": [
            {"role": "assistant", "content": None},
            {"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "refusal", "refusal": "no"}]},
        ],
    }  # fmt: skip
    assert prefix_of(parse(json.dumps(body).encode(), True), key_of("acme"), "m") != 0


@given(text=st.text(max_size=3000), tenant=st.sampled_from(["a", "b"]))
def test_a_prefix_is_64_bits_whatever_the_text(text: str, tenant: str) -> None:
    assert 0 <= of_chat(("user", text), tenant=tenant) < 2**64
    assert 0 <= of_prompt(text or "x", tenant=tenant) < 2**64


@pytest.mark.parametrize(("routing", "has_prefix"), [("least_work", False), ("prefix_affinity", True)])
def test_only_pools_that_route_by_it_have_it_computed_and_it_reaches_the_leader(routing: str, has_prefix: bool) -> None:
    pool = PoolSpec("p", "m", "m", (BackendSpec("b", "p", "http://127.0.0.1:1", 8, 9000),), routing=routing)
    entitlement = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
    access = Access(KeySpec("k" * 12, b"", "e"), entitlement, pool, Limits(entitlement), None)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": LONG}]}).encode()
    prepared = prepare(body, True, pool)
    queued = make_queued("r", 1.0, access, prepared, make_estimate(prepared, pool, Calibration()), None, "gw-1")
    assert bool(queued.prefix) is has_prefix
    assert codec.decode_request(codec.encode_request(StoredRequest(queued, FACTS))).request == queued
    largest = replace(queued, prefix=2**64 - 1)
    assert codec.decode_request(codec.encode_request(StoredRequest(largest, FACTS))).request == largest


# --- where it leads


def affinity(**params: Any) -> Any:
    return make_routing("prefix_affinity", params).router()


def chosen(router: Any, prefix: int, *work: float, number: int = 1, **changes: Any) -> str:
    backends = [backend_view(f"b{place}", work_tokens=tokens) for place, tokens in enumerate(work)]
    found = router.choose(waiting(number, prefix=prefix, **changes), backends)
    return found.id


def test_a_prefix_goes_where_it_went_until_that_replica_has_too_much_to_do() -> None:
    router = affinity(skew_tokens=1000.0)
    assert chosen(router, 7, 50.0, 0.0) == "b1"
    assert chosen(router, 7, 0.0, 1000.0) == "b1"
    assert chosen(router, 7, 0.0, 1000.5) == "b0"  # and from now on it is warm there
    assert chosen(router, 7, 900.0, 0.0) == "b0"


def test_requests_without_a_prefix_go_to_the_least_work_and_are_not_remembered() -> None:
    router = affinity()
    assert chosen(router, 0, 50.0, 0.0) == "b1"
    assert chosen(router, 0, 0.0, 50.0) == "b0"
    assert len(router) == 0


def test_a_warm_replica_without_room_is_not_waited_for() -> None:
    router = affinity()
    assert chosen(router, 7, 50.0, 0.0) == "b1"
    full = [backend_view("b0"), backend_view("b1", slots=1, running=1)]
    found = router.choose(waiting(2, prefix=7), full)
    assert found is not None
    assert found.id == "b0"
    assert chosen(router, 7, 0.0, 0.0, exclude_backend="b0") == "b1"


def test_a_replica_that_is_gone_is_forgotten() -> None:
    router = affinity()
    assert chosen(router, 7, 50.0, 40.0, 0.0) == "b2"
    assert chosen(router, 7, 50.0, 40.0) == "b1"


def test_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    router = affinity(remember=3)
    for prefix in (1, 2, 3, 1, 4):
        chosen(router, prefix, 10.0, 0.0)
    assert len(router) == 3
    assert chosen(router, 1, 0.0, 10.0) == "b1"  # remembered
    assert chosen(router, 2, 0.0, 10.0) == "b0"  # forgotten


def test_the_skew_between_replicas_stays_bounded_when_all_ask_for_one_prefix() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("prefix_affinity", {"skew_tokens": 1500.0}))
    view = pool_view(*(backend_view(f"b{n}", slots=1000, kv_tokens=10**9) for n in range(4)))
    for number in range(90):
        scheduler.offer(waiting(number, prefix=7), 1000.0)
    grants = scheduler.step(view, 1000.0)
    assert len(grants) == 90
    work = [backend.work_tokens for backend in view.backends.values()]
    assert max(work) - min(work) <= 1500 + 150  # one request is 150 tokens
    assert "prefix_affinity of 4" in grants[0].reason


def test_a_swap_of_the_ordering_forgets_no_prefix_and_another_routing_does() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("prefix_affinity"))

    def where(number: int, *work: float) -> str:
        scheduler.offer(waiting(number, prefix=7), 1000.0)
        view = pool_view(*(backend_view(f"b{place}", work_tokens=tokens) for place, tokens in enumerate(work)))
        return scheduler.step(view, 1000.0)[0].backend

    assert where(1, 50.0, 0.0) == "b1"
    scheduler.swap(make_policy("edf"), make_routing("prefix_affinity"), 1000.0)
    assert where(2, 0.0, 50.0) == "b1"
    scheduler.swap(make_policy("edf"), make_routing("prefix_affinity", {"skew_tokens": 9000.0}), 1000.0)
    assert where(3, 0.0, 50.0) == "b0"


@pytest.mark.parametrize("params", [{"skew_tokens": -1.0}, {"remember": 0}])
def test_impossible_bounds_are_refused(params: dict[str, float]) -> None:
    with pytest.raises(PolicyError, match="skew_tokens must be at least 0 and remember at least 1"):
        make_routing("prefix_affinity", params)


def test_the_simulated_cluster_routes_by_prefix_as_the_leader_does() -> None:
    tier = Tier("chat")
    work = [make_request(n, n * 10.0, 300, 5, tier, Belief(5.0)) for n in range(6)]
    warm = [replace(r, queued=replace(r.queued, prefix=1 + r.index % 2)) for r in work]
    # both replicas are idle at each arrival: least work takes the first by name, always
    config = EngineConfig(StepTime(t0=0.01, a=1e-4, b=0.0, c=0.0, e=0.0, knee=0.0, a2=0.0))

    def placed(routing: str, params: dict[str, float], requests: list[SimRequest]) -> list[int]:
        engines = [make_engine(config, make_policy("fifo")) for _ in range(2)]
        lives = Cluster(engines, make_routing(routing, params)).run(requests)
        return [life.replica for life in sorted(lives, key=lambda life: life.sim.index)]

    assert placed("least_work", {}, warm) == [0] * 6
    close = [replace(r, arrival_fs=to_fs(0.0 if r.index < 2 else r.index * 10.0)) for r in warm]
    assert placed("prefix_affinity", {}, close) == [0, 1, 0, 1, 0, 1]
    assert placed("prefix_affinity", {"remember": 1}, close) == [0, 1, 0, 0, 0, 0]
