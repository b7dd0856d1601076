"""Prompts that begin alike share a prefix; tenants never do; and replicas that ran it are preferred within bounds."""

from __future__ import annotations

import json
from base64 import b64encode
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.engine.step_time import StepTime
from scheduling.core.estimate.tokens import TokenCalibration
from scheduling.core.placement.rule import MAX_DEPTH, Point, PrefixIndex, read_points, worth, write_points
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.registry import make_routing
from scheduling.core.scheduler.loop import Scheduler
from scheduling.core.types import BackendSpec, EntitlementSpec, EntitlementState, KeySpec, PoolSpec, PrefixCache
from scheduling.gateway.bodies.prepare import parse
from scheduling.gateway.entry.auth import Access
from scheduling.gateway.estimate.cache_salt import prefix_key
from scheduling.gateway.estimate.estimates import make_estimate, make_queued
from scheduling.gateway.estimate.prefix import MAX_POINTS, MIN_BYTES, prefixes_of
from scheduling.gateway.headers import Limits
from scheduling.simulator.batches import make_engine
from scheduling.simulator.cluster import Cluster
from scheduling.simulator.engine import EngineConfig
from scheduling.simulator.kernel import to_fs
from scheduling.simulator.workload import Belief, SimRequest, Tier, make_request
from scheduling.state import codec
from scheduling.state.types import StoredRequest
from tests.support.gateway_world import TIER
from tests.support.preparing import prepare
from tests.support.scheduling_world import backend_view, pool_view, waiting
from tests.support.state_world import FACTS

SYSTEM = "You answer questions about the harbour of a small town. " * 8
LONG = "Tell me what happened in the year of the great flood, from the beginning. " * 20


def key_of(tenant: str, mode: PrefixCache = PrefixCache.ISOLATED, secret: bytes = b"secret") -> bytes:
    return prefix_key(secret, "p", tenant, mode)


POOL = PoolSpec("p", "m", "m", tuple(BackendSpec(f"b{n}", "p", f"http://127.0.0.1:{n}", 8, 9000) for n in (1, 2)))


AFFINE = replace(POOL, routing="prefix_affinity", max_model_len=8192)


def of_chat(
    *messages: tuple[str, str], tenant: str = "acme", model: str = "m", tokens: int = 1000, **more: Any
) -> list[Point]:
    body = {"model": "m", "messages": [{"role": role, "content": text} for role, text in messages]} | more
    return points_of(body, tenant=tenant, model=model, tokens=tokens)


def of_prompt(prompt: str | list[int], tenant: str = "acme", **more: Any) -> list[Point]:
    return points_of({"model": "m", "prompt": prompt} | more, tenant=tenant)


def points_of(
    body: dict[str, Any], tenant: str = "acme", model: str = "m", key: bytes | None = None, tokens: int = 1000
) -> list[Point]:
    parsed = parse(json.dumps(body).encode(), "messages" in body)
    text = prefixes_of(parsed, key or key_of(tenant), replace(POOL, model=model), tokens)
    return read_points(text)[1] if text else []


def names(points: list[Point]) -> list[str]:
    return [name for name, _ in points]


def shared(one: list[Point], other: list[Point]) -> list[str]:
    found = set(names(other))
    return [name for name in names(one) if name in found]


def test_sessions_with_the_same_system_message_share_its_points_and_are_told_apart() -> None:
    one = of_chat(("system", SYSTEM), ("user", "hi, I am the first one"))
    two = of_chat(("system", SYSTEM), ("user", "and I ask something else"))
    assert shared(one, two) == names(one)[:1] == names(two)[:1]
    assert len(one) == len(two) == 2
    assert not shared(one, of_chat(("system", SYSTEM + "!"), ("user", "hi, I am the first one")))


@pytest.mark.parametrize("turns", [1, 2, 3, 7, 12, 14, 30, 100])
def test_a_conversation_finds_the_end_of_its_last_turn_while_it_grows(turns: int) -> None:
    said = [("system", SYSTEM)] + [(("user", "assistant")[n % 2], f"{n}: {LONG[: 150 + n]}") for n in range(240)]
    size = sum(len(text) for _, text in said[: 2 * turns + 2])
    before, now = of_chat(*said[: 2 * turns]), of_chat(*said[: 2 * turns + 2], tokens=size // 4)
    other = of_chat(*said[:1], ("user", "another session"), *said[2 : 2 * turns + 2])
    assert names(before)[-1] in shared(now, before)
    assert names(before)[-1] not in names(other)
    last = sum(len(text) for _, text in said[: 2 * turns])
    assert dict(now)[names(before)[-1]] == pytest.approx(last / 4, abs=2)


@pytest.mark.parametrize("results", [1, 2, 5])
def test_an_agent_finds_the_end_of_its_last_turn_however_many_tools_it_called(results: int) -> None:
    messages: list[dict[str, Any]] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": LONG}]
    messages += [{"role": "assistant", "content": f"step {n}"} for n in range(7)]
    calls = [
        {"id": f"call-{n}", "type": "function", "function": {"name": "look", "arguments": "{}"}} for n in range(results)
    ]
    said = [{"role": "tool", "tool_call_id": f"call-{n}", "content": f"{n}: {LONG[:200]}"} for n in range(results)]
    before = points_of({"model": "m", "messages": messages})
    turn = [*messages, {"role": "assistant", "content": "", "tool_calls": calls}, *said]
    assert names(before)[-1] in shared(points_of({"model": "m", "messages": turn}), before)


def test_a_long_text_that_goes_on_keeps_its_points() -> None:
    text = LONG * 30
    for size in (1100, 5000, 9000, 40_000):
        before, now = of_prompt(text[:size]), of_prompt(text[: size + 700])
        assert shared(now, before) == names(before)[:-1] != []
        assert not shared(of_prompt("x" + text[:size]), before)
    assert shared(of_prompt(text[:9000]), of_prompt(text[:4100] + "!" + text[4101:9000])) == names(of_prompt(text))[:3]


def test_tenants_and_models_never_share_a_point() -> None:
    found = [of_chat(("user", LONG), tenant=t, model=m) for t in ("acme", "globex") for m in ("m", "other")]
    assert len({name for points in found for name in names(points)}) == sum(map(len, found)) > 4


def test_tenants_share_points_where_their_pool_shares_its_caches() -> None:
    body = {"model": "m", "prompt": LONG}
    for mode, same in (
        (PrefixCache.SHARED, True),
        (PrefixCache.ISOLATED, False),
        (PrefixCache.UNSALTED, False),
    ):
        acme, globex = (points_of(body, key=key_of(tenant, mode)) for tenant in ("acme", "globex"))
        assert (acme == globex) is same
        assert acme
        assert same or not shared(acme, globex)


def test_who_reads_redis_cannot_compute_a_point_without_the_secret() -> None:
    body = {"model": "m", "prompt": LONG}
    assert not shared(points_of(body), points_of(body, key=key_of("acme", secret=b"guess")))


def test_a_clients_own_salt_divides_its_points_as_the_engines_cache_does() -> None:
    found = [of_prompt(LONG, **({} if salt is None else {"cache_salt": salt})) for salt in (None, "one", "two")]
    assert len({names(points)[0] for points in found}) == 3


def test_tools_come_before_the_conversation() -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}
    assert not shared(of_chat(("user", LONG)), of_chat(("user", LONG), tools=[tool]))


@given(at=st.integers(0, 8999), size=st.integers(1, 9000), into=st.sampled_from("!\u00e4\0\U0001f600"))
def test_prompts_share_no_point_behind_what_differs_in_them(at: int, size: int, into: str) -> None:
    text = (LONG * 10)[: max(size, at + 1)]
    changed = text[:at] + into + text[at + 1 :]
    for ask in (of_prompt, lambda given: of_chat(("system", given), ("user", "what is it?"))):
        one, other = ask(text), ask(changed)
        assert (
            shared(one, other)
            == names(one)[: sum(stop <= at for stop in (1024, 2048, 4096, 8192) if stop <= len(text))]
        )


TOOL = {"type": "function", "function": {"name": "look_up", "description": LONG, "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": '{"of": "a"}'}}


@pytest.mark.parametrize("path", [
    ("tools", 0, "function", "description"), ("tools", 0, "function", "parameters", "type"), ("messages", 0, "content"),
    ("messages", 1, "name"), ("messages", 2, "tool_calls", 0, "function", "arguments"), ("messages", 2, "reasoning"),
    ("messages", 3, "tool_call_id"), ("messages", 3, "content"), ("messages", 4, "content", 0, "text"),
    ("messages", 4, "content", 1, "image_url", "url"), ("documents", 0, "text"), ("reasoning_effort",),
    ("chat_template_kwargs", "style"), ("messages", 0, "role"), ("tool_choice",), ("add_special_tokens",),
])  # fmt: skip
def test_whatever_differs_in_a_conversation_its_end_is_another(path: tuple[str | int, ...]) -> None:
    body: dict[str, Any] = {
        "model": "m", "tools": [TOOL], "documents": [{"text": LONG}], "reasoning_effort": "low",
        "chat_template_kwargs": {"style": "plain"}, "tool_choice": "auto", "add_special_tokens": True,
        "messages": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": "what is it?", "name": "anna"},
            {"role": "assistant", "content": "", "tool_calls": [CALL], "reasoning": "so"},
            {"role": "tool", "content": "a ship", "tool_call_id": "1"},
            {"role": "user", "content": [
                {"type": "text", "text": "and this?"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,aa"}},
            ]},
        ],
    }  # fmt: skip
    before = names(points_of(body))
    assert names(points_of(deepcopy(body))) == before
    changed = deepcopy(body)
    at = changed
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = {
        "reasoning_effort": "high", "role": "developer", "tool_choice": "none", "add_special_tokens": False,
    }.get(str(path[-1]), f"{at[path[-1]]}b")  # fmt: skip
    after = names(points_of(changed))
    assert after[-1] != before[-1]
    same = [one == other for one, other in zip(before, after, strict=True)]
    assert same == sorted(same, reverse=True), "what is before it is the same"


@pytest.mark.parametrize("at", [1, 700, 1500])
def test_a_text_in_two_parts_is_another_prompt_from_there_on(at: int) -> None:
    """vLLM joins parts with a line break, so nothing behind it is cached."""
    parts = [{"type": "text", "text": LONG[:at]}, {"type": "text", "text": LONG[at:]}]
    whole, split = (
        points_of({"model": "m", "messages": [{"role": "user", "content": content}]}) for content in (LONG, parts)
    )
    assert shared(split, whole) == names(whole)[: at >= 1024]
    one = points_of({"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": LONG}]}]})
    assert one == whole


@pytest.mark.parametrize("kind", ["thinking", "refusal"])
def test_what_an_answer_thought_is_not_before_what_it_follows(kind: str) -> None:
    """The system message is a small part of such a prompt, so few of its tokens are before the point behind it."""
    part = {"type": kind, kind: LONG * 10}
    messages = [{"role": "system", "content": SYSTEM}, {"role": "assistant", "content": [part]}]
    (_, before), *_ = points_of({"model": "m", "messages": messages}, tokens=4000)
    assert before <= 4000 * len(SYSTEM) / len(LONG * 10)


def test_a_text_cannot_be_made_to_look_like_two_messages() -> None:
    """Whatever stands between messages is in no text."""
    two = of_chat(("user", LONG), ("assistant", "yes"), ("user", LONG))
    for between in ("assistant", "\0assistant\0", "\xffassistant\xff"):
        assert not shared(two[-1:], of_chat(("user", f"{LONG}{between}yes{between}{LONG}")))


def test_short_prompts_have_no_points() -> None:
    assert of_chat(("user", "hello")) == []
    assert of_prompt("x" * (MIN_BYTES - 1)) == []
    assert len(of_prompt("x" * MIN_BYTES)) == 1


def test_a_pool_with_one_replica_has_nothing_to_choose_from_and_computes_none() -> None:
    body = parse(json.dumps({"model": "m", "prompt": LONG}).encode(), False)
    assert prefixes_of(body, key_of("acme"), replace(POOL, backends=POOL.backends[:1]), 100) == ""


def test_token_ids_have_points_as_well() -> None:
    ids = list(range(1000))
    assert shared(of_prompt(ids), of_prompt(ids[:700])) == names(of_prompt(ids))[:2]
    assert not shared(of_prompt(ids), of_prompt(ids[1:]))


def test_parts_tool_calls_and_empty_messages_are_read_too() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "look_up", "arguments": LONG}}
    messages: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": [{"type": "text", "text": LONG}, {"type": "refusal", "refusal": "no"}]},
    ]
    found = points_of({"model": "m", "messages": messages})
    assert found
    call["function"] = {"name": "look_up", "arguments": "{}"}
    assert not shared(found, points_of({"model": "m", "messages": messages}))


@given(text=st.text(max_size=6000), tenant=st.sampled_from(["a", "b"]), turns=st.integers(1, 70))
def test_points_are_few_and_go_deeper_whatever_the_text(text: str, tenant: str, turns: int) -> None:
    for points in (of_chat(*[("user", text)] * turns, tenant=tenant), of_prompt(text or "x", tenant=tenant)):
        assert len(points) <= MAX_POINTS
        assert len(set(names(points))) == len(points)
        depths = [tokens for _, tokens in points]
        assert depths == sorted(depths)
        assert all(0 <= tokens <= 1000 for tokens in depths)


def test_points_survive_being_written() -> None:
    assert read_points(write_points(4096.5, [("0" * 12, 7), ("f" * 12, 2**30)])) == (
        4096,
        [("0" * 12, 7), ("f" * 12, MAX_DEPTH)],
    )


@pytest.mark.parametrize(("routing", "has_points"), [("least_work", False), ("prefix_affinity", True)])
def test_only_pools_that_route_by_it_have_it_computed_and_it_reaches_the_leader(routing: str, has_points: bool) -> None:
    pool = replace(POOL, routing=routing, routing_params={"skew_tokens": 500.0} if has_points else {})
    entitlement = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
    access = Access(KeySpec("k" * 12, b"", "e"), entitlement, pool, Limits(entitlement), None)
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": LONG}]}).encode()
    prepared = prepare(body, True, pool)
    queued = make_queued("r", 1.0, access, prepared, make_estimate(prepared, pool, TokenCalibration()), None, "gw-1")
    assert bool(queued.prefixes) is has_points
    assert not has_points or read_points(queued.prefixes)[0] == 501, "it does not go on"
    assert codec.decode_request(codec.encode_request(StoredRequest(queued, FACTS))).request == queued


def begun(body: dict[str, Any], tokens: int) -> int:
    """How many tokens of a chat are before the last point that it shares with one that has only its first message."""
    found = points_of(body, tokens=tokens)
    return dict(found)[shared(found, points_of({**body, "messages": body["messages"][:1]}))[-1]]


RANDOM = "".join(f"{n * n * 7919 % 99991:x}" for n in range(20_000))


@pytest.mark.parametrize(("system", "rest", "tokens"), [
    (" " * 200_000, "漢字" * 5000, 10_000 + 3000),  # many blanks to a token
    (" " * 200_000, RANDOM, len(RANDOM) // 3 + 3000),
    (LONG, "漢字" * 5000, len(LONG) // 4 + 10_000),
])  # fmt: skip
def test_blanks_that_prompts_share_are_not_taken_for_what_differs_in_them(system: str, rest: str, tokens: int) -> None:
    """By length alone a beginning of blanks is most of any prompt."""
    messages = [{"role": "system", "content": system}, {"role": "user", "content": rest}]
    lacking = len(rest.encode()) // 5
    assert begun({"model": "m", "messages": messages}, tokens) <= tokens - lacking


def test_what_is_not_read_of_a_conversation_is_not_expected_to_be_cached() -> None:
    read = [{"role": "user", "content": "hello"}] * 512
    found = points_of({"model": "m", "messages": [*read, {"role": "user", "content": RANDOM}]}, tokens=40_000)
    assert found[-1][1] <= 1200


def png(wide: int, high: int, seed: int) -> str:
    head = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + wide.to_bytes(4, "big") + high.to_bytes(4, "big") + bytes([seed] * 40)
    return f"data:image/png;base64,{b64encode(head).decode()}"


def test_other_images_are_not_expected_to_be_cached_with_the_words_before_them() -> None:
    """Nearly all tokens of such a prompt are its image's, and its length does not show that."""
    pool = replace(AFFINE, backends=tuple(replace(b, kv_tokens=99_999) for b in POOL.backends), max_model_len=32_768)
    entitlement = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
    access = Access(KeySpec("k" * 12, b"", "e"), entitlement, pool, Limits(entitlement), None)
    told = []
    for seed in (1, 2):
        parts = [{"type": "image_url", "image_url": {"url": png(2000, 2000, seed)}}]
        messages = [{"role": "system", "content": LONG}, {"role": "user", "content": parts}]
        data = json.dumps({"model": "m", "messages": messages, "max_tokens": 9}).encode()
        prepared = prepare(data, True, pool)
        estimate = make_estimate(prepared, pool, TokenCalibration())
        assert estimate.input_tokens > 4000
        told.append(read_points(make_queued("r", 1.0, access, prepared, estimate, None, "gw-1").prefixes)[1])
    assert len(LONG) // 6 < dict(told[1])[shared(told[1], told[0])[-1]] < len(LONG) // 3


@pytest.mark.parametrize(("more", "known"), [
    ({}, True), ({"echo": True}, True), ({"logprobs": 1}, True), ({"echo": True, "logprobs": 0}, False),
    ({"truncate_prompt_tokens": 100}, False), ({"truncate_prompt_tokens": 7000}, True),
])  # fmt: skip
def test_what_no_engine_looks_up_in_its_cache_is_not_expected_there(more: dict[str, Any], known: bool) -> None:
    """It would be computed, and count for nothing: vLLM looks nothing up for who wants its prompt's log probabilities,
    nor counts that, and what is cut off at the front begins otherwise."""
    entitlement = EntitlementSpec("e", "t", "p", TIER, EntitlementState.BOUND, 0.0, 0.0, 0, 4)
    access = Access(KeySpec("k" * 12, b"", "e"), entitlement, AFFINE, Limits(entitlement), None)
    prepared = prepare(json.dumps({"model": "m", "prompt": LONG * 8, "max_tokens": 9} | more).encode(), False, AFFINE)
    estimate = make_estimate(prepared, AFFINE, TokenCalibration())
    assert bool(make_queued("r", 1.0, access, prepared, estimate, None, "gw-1").prefixes) is known


# --- where it leads

SEVEN, EIGHT = (write_points(10**6, [(name * 12, 376)]) for name in "78")
VALUE = worth(376, True)


def affinity(**params: Any) -> Any:
    return make_routing("prefix_affinity", params).router()


def chosen(router: Any, prefixes: str, *work: float, number: int = 1, **changes: Any) -> str:
    backends = [backend_view(f"b{place}", work_tokens=tokens) for place, tokens in enumerate(work)]
    found = router.choose(waiting(number, prefixes=prefixes, **changes), backends)
    return found.id


def test_a_prefix_goes_where_it_went_until_that_replica_has_too_much_to_do() -> None:
    router = affinity(skew_tokens=600.0)
    assert chosen(router, SEVEN, 50.0, 0.0) == "b1"
    assert chosen(router, SEVEN, 0.0, 600.0) == "b1"
    assert chosen(router, SEVEN, 0.0, 600.5) == "b0"  # and from now on it is warm on both
    assert chosen(router, SEVEN, 550.0, 540.0) == "b1"


def test_a_cached_token_is_worth_only_so_many_outstanding_ones() -> None:
    router = affinity()
    assert chosen(router, SEVEN, 50.0, 0.0) == "b1"
    assert chosen(router, SEVEN, 0.0, VALUE - 1) == "b1"
    assert chosen(router, SEVEN, 0.0, VALUE + 1) == "b0"


def test_what_begins_a_conversation_is_worth_less_where_it_is_cached_than_what_goes_on() -> None:
    begins = of_chat(("system", LONG), ("user", "hi"))
    goes_on = of_chat(("system", LONG), ("user", "hi"), ("assistant", "yes?"), ("user", "go on"))
    assert names(begins)[0] == names(goes_on)[0]
    index = PrefixIndex()
    value = []
    for points, on in ((begins, False), (goes_on, True)):
        text = write_points(0, points, on)
        index.ran(text, "a")
        warmth = index.warmth(text)
        assert warmth is not None
        value.append(warmth.worth["a"])
    assert 900 * 4 < value[0] <= 1000 * 4 < value[1]
    assert worth(100, False) > worth(100, True)  # short ones are cached everywhere soon
    assert worth(20_000, True) > 20 * 20_000


def test_the_deepest_point_that_is_known_counts() -> None:
    router = affinity()
    system = ("a" * 12, 100)
    first, second = (write_points(10**6, [system, (name * 12, 400)]) for name in "bc")
    assert chosen(router, first, 50.0, 0.0) == "b1"
    assert chosen(router, second, 0.0, 1000.0) == "b0"  # its system message alone is on b1
    assert chosen(router, first, 0.0, 1000.0) == "b1"
    assert chosen(router, second, 1000.0, 0.0) == "b0"


def test_unknown_prompts_spread_over_idle_replicas_and_every_router_agrees() -> None:
    texts = [write_points(10**6, [(f"{n:012x}", 40)]) for n in range(200)]
    found = [chosen(affinity(), text, 0.0, 0.0, 0.0, 0.0) for text in texts]
    assert found == [chosen(affinity(), text, 0.0, 0.0, 0.0, 0.0) for text in texts]
    assert all(30 <= found.count(f"b{n}") <= 70 for n in range(4))


def test_requests_without_points_go_to_the_least_work_and_are_not_remembered() -> None:
    router = affinity()
    assert chosen(router, "", 50.0, 0.0) == "b1"
    assert chosen(router, "", 0.0, 50.0) == "b0"
    assert len(router) == 0


def test_a_warm_replica_without_room_is_not_waited_for() -> None:
    router = affinity()
    assert chosen(router, SEVEN, 50.0, 0.0) == "b1"
    full = [backend_view("b0"), backend_view("b1", slots=1, running=1)]
    found = router.choose(waiting(2, prefixes=SEVEN), full)
    assert found is not None
    assert found.id == "b0"
    assert chosen(router, SEVEN, 0.0, 0.0, exclude_backend="b0") == "b1"


def test_a_replica_that_is_gone_is_forgotten() -> None:
    router = affinity()
    assert chosen(router, SEVEN, 50.0, 40.0, 0.0) == "b2"
    assert chosen(router, SEVEN, 50.0, 40.0) == "b1"


def test_memory_is_bounded_and_keeps_what_was_used_last() -> None:
    router = affinity(remember=4)
    texts = {n: write_points(10**6, [(f"{n:012x}", 40)]) for n in range(300)}
    for n in range(300):
        chosen(router, texts[n], 10.0, 0.0)
        chosen(router, texts[0], 10.0, 0.0)
        assert len(router) <= 6
    assert chosen(router, texts[0], 0.0, 10.0) == "b1"  # remembered
    assert chosen(router, texts[1], 0.0, 10.0) == "b0"  # forgotten


def test_the_skew_between_replicas_stays_bounded_when_all_ask_for_one_prefix() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("prefix_affinity", {"skew_tokens": 1500.0}))
    view = pool_view(*(backend_view(f"b{n}", slots=1000, kv_tokens=10**9) for n in range(4)))
    deep = write_points(10**6, [("7" * 12, 10_000)])
    for number in range(90):
        scheduler.offer(waiting(number, prefixes=deep), 1000.0)
    grants = scheduler.step(view, 1000.0)
    assert len(grants) == 90
    work = [backend.work_tokens for backend in view.backends.values()]
    assert max(work) - min(work) <= max(1500, sum(work) / 4) + 150  # one request is 150 tokens
    assert "prefix_affinity of 4" in grants[0].reason


def test_what_all_share_is_cached_everywhere_and_then_unbalances_nothing() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("prefix_affinity"))
    view = pool_view(*(backend_view(f"b{n}", slots=1000, kv_tokens=10**9) for n in range(4)))
    for number in range(400):
        scheduler.offer(waiting(number, prefixes=SEVEN), 1000.0)
    while scheduler.step(view, 1000.0):
        pass
    work = [backend.work_tokens for backend in view.backends.values()]
    assert max(work) - min(work) <= VALUE + 150


def test_a_router_learns_where_prompts_ran_that_others_placed() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("prefix_affinity"))
    assert scheduler.learns_places
    assert not Scheduler(make_policy("fifo"), make_routing("least_work")).learns_places
    scheduler.learn({"7" * 12: "b1 b9"})
    scheduler.offer(waiting(1, prefixes=SEVEN), 1000.0)
    view = pool_view(*(backend_view(f"b{place}", work_tokens=tokens) for place, tokens in enumerate((0.0, 50.0))))
    assert scheduler.step(view, 1000.0)[0].backend == "b1"


def test_a_swap_of_the_ordering_forgets_no_prefix_and_another_routing_does() -> None:
    scheduler = Scheduler(make_policy("fifo"), make_routing("prefix_affinity"))

    def where(number: int, *work: float) -> str:
        scheduler.offer(waiting(number, prefixes=SEVEN), 1000.0)
        view = pool_view(*(backend_view(f"b{place}", work_tokens=tokens) for place, tokens in enumerate(work)))
        return scheduler.step(view, 1000.0)[0].backend

    assert where(1, 50.0, 0.0) == "b1"
    scheduler.swap(make_policy("edf"), make_routing("prefix_affinity"), 1000.0)
    assert where(2, 0.0, 50.0) == "b1"
    scheduler.swap(make_policy("edf"), make_routing("prefix_affinity", {"skew_tokens": 9000.0}), 1000.0)
    assert where(3, 0.0, 50.0) == "b0"


def test_the_simulated_cluster_routes_by_prefix_as_the_leader_does() -> None:
    tier = Tier("chat")
    work = [make_request(n, n * 10.0, 300, 5, tier, Belief(5.0)) for n in range(6)]
    warm = [replace(r, queued=replace(r.queued, prefixes=(SEVEN, EIGHT)[r.index % 2])) for r in work]
    # both replicas are idle at each arrival: least work takes the first by name, always
    config = EngineConfig(StepTime(t0=0.01, a=1e-4, b=0.0, c=0.0, e=0.0, knee=0.0, a2=0.0))

    def placed(routing: str, params: dict[str, float], requests: list[SimRequest]) -> list[int]:
        engines = [make_engine(config, make_policy("fifo")) for _ in range(2)]
        lives = Cluster(engines, make_routing(routing, params)).run(requests)
        return [life.replica for life in sorted(lives, key=lambda life: life.sim.index)]

    assert placed("least_work", {}, warm) == [0] * 6
    close = [replace(r, arrival_fs=to_fs(0.0 if r.index < 2 else r.index * 10.0)) for r in warm]
    first, second = placed("prefix_affinity", {}, close)[:2]
    assert first != second
    assert placed("prefix_affinity", {}, close) == [first, second] * 3
