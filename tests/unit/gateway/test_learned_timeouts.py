"""How long clients wait that do not say so: by departures that agree, until somebody waits longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.estimate.client_timeout import DEPARTURES, OUTLIVED_S, RECENT_S, ClientTimeout
from scheduling.core.outcomes import Reason
from scheduling.gateway.entry.guard import CLIENT_TIMEOUT, TTFT_HINT
from scheduling.gateway.estimate.client_timeouts import KEYS_KEPT, ClientTimeouts


def left_at(*ages_s: float, every_s: float = 1.0) -> ClientTimeout:
    known = ClientTimeout()
    for number, age_s in enumerate(ages_s):
        known.left(age_s, number * every_s)
    return known


FIVE = [5.0, 5.02, 5.1, 5.0, 5.01, 5.0, 5.05, 5.0]
NOW_S = 10.0


def test_clients_that_leave_at_one_age_have_that_limit():
    assert left_at(*FIVE).limit_s(NOW_S) == 5.1, "the longest: nobody is thought gone who may still be there"


@pytest.mark.parametrize(
    "ages",
    [FIVE[:-1], [*FIVE[:-1], 3.0], [0.4, 1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0]],
    ids=["too few", "one left sooner", "people"],
)
def test_departures_that_are_few_or_do_not_agree_say_nothing(ages: list[float]):
    assert left_at(*ages).limit_s(NOW_S) is None


def test_departures_of_long_ago_say_nothing():
    assert left_at(*FIVE).limit_s(RECENT_S + 0.1) is None
    assert left_at(*FIVE, every_s=RECENT_S / (DEPARTURES - 1)).limit_s(RECENT_S) is not None
    assert left_at(*FIVE, every_s=RECENT_S / 2).limit_s(RECENT_S * 4) is None


def test_somebody_who_waits_longer_shows_that_there_is_no_such_limit():
    known = left_at(*FIVE)
    known.waited(4.0, NOW_S)
    known.waited(5.2, NOW_S)
    assert known.limit_s(NOW_S) == 5.1, "as long as those that left"
    known.waited(6.0, NOW_S)
    assert known.limit_s(NOW_S) is None
    for second in range(DEPARTURES):
        known.left(5.0, NOW_S + second)
    assert known.limit_s(NOW_S + DEPARTURES) is None, "others who leave do not make them leave"


def test_that_is_forgotten_when_nobody_has_waited_so_long_for_ten_minutes():
    known = ClientTimeout()
    known.waited(60.0, 0.0)
    known.waited(20.0, OUTLIVED_S)
    for age_s in FIVE:
        known.left(age_s, OUTLIVED_S + 5.0)
    assert known.limit_s(OUTLIVED_S + 5.0) is None, "20 s were waited just now"
    for age_s in FIVE:
        known.left(age_s, 2 * OUTLIVED_S)
    assert known.limit_s(2 * OUTLIVED_S) == 5.1


@given(ages=st.lists(st.floats(0.01, 900.0), max_size=20), waited=st.lists(st.floats(0.01, 900.0), max_size=5))
def test_a_limit_is_never_shorter_than_what_the_last_departures_or_anybody_clearly_waited(
    ages: list[float], waited: list[float]
):
    known = left_at(*ages, every_s=0.0)
    for age_s in waited:
        known.waited(age_s, 0.0)
    limit_s = known.limit_s(0.0)
    if limit_s is not None:
        assert limit_s == max(ages[-DEPARTURES:])
        assert all(age_s <= 1.05 * limit_s + 0.1 for age_s in waited)


# --- in a gateway


def submitted(
    key: str, age_s: float, *, begun_s: float | None = None, stream: bool = False, responding: bool = False
) -> Any:
    """A request of that age now, whose answer began at ``begun_s``."""
    call = SimpleNamespace(received_s=0.0, now_s=lambda: age_s, responding=responding, submitted=None)
    access = SimpleNamespace(key=SimpleNamespace(id=key))
    identified = SimpleNamespace(call=call, access=access, hints=None)
    call.submitted = SimpleNamespace(
        call=call, identified=identified, estimated=SimpleNamespace(prepared=SimpleNamespace(stream=stream)),
        first_token_s=begun_s,
    )  # fmt: skip
    return call.submitted


def gateway(key: str = "key", *, stream: bool = False) -> ClientTimeouts:
    known = ClientTimeouts()
    for age_s in FIVE:
        known.ended(submitted(key, age_s, stream=stream).identified, Reason.CLIENT_LEFT)
    return known


def thought(known: ClientTimeouts, key: str = "key", *, stream: bool = False, **said: float) -> float | None:
    identified = submitted(key, 0.0).identified
    identified.hints = {name.encode(): value for name, value in said.items()} or None
    return (known.hints(identified, stream) or {}).get(CLIENT_TIMEOUT)


def test_only_requests_of_the_key_and_form_of_those_that_left_are_thought_to_leave():
    known = gateway()
    assert thought(known) == 5.1
    assert thought(known, stream=True) is None
    assert thought(known, "another") is None
    assert thought(ClientTimeouts()) is None


def test_what_a_client_says_counts_instead_and_its_other_wishes_stay():
    known = gateway()
    assert thought(known, **{CLIENT_TIMEOUT.decode(): 60.0}) == 60.0
    identified = submitted("key", 0.0).identified
    identified.hints = {TTFT_HINT: 0.5}
    assert known.hints(identified, False) == {TTFT_HINT: 0.5, CLIENT_TIMEOUT: 5.1}
    assert identified.hints == {TTFT_HINT: 0.5}


def test_who_leaves_an_answer_that_has_begun_says_nothing():
    known = ClientTimeouts()
    for age_s in FIVE:
        known.ended(submitted("key", age_s, responding=True).identified, Reason.CLIENT_LEFT)
    assert thought(known) is None


@pytest.mark.parametrize("reason", [Reason.STOP, Reason.QUEUE_TIMEOUT, Reason.BACKEND_LOST])
def test_whoever_was_still_there_later_waits_longer(reason: Reason):
    known = gateway()
    known.ended(submitted("key", 9.0).identified, reason)
    assert thought(known) is None


def test_a_stream_was_waited_for_until_it_began():
    known = gateway(stream=True)
    known.ended(submitted("key", 90.0, begun_s=2.0, stream=True).identified, Reason.STOP)
    assert thought(known, stream=True) == 5.1
    known.ended(submitted("key", 90.0, begun_s=7.0, stream=True).identified, Reason.STOP)
    assert thought(known, stream=True) is None


def test_whoever_waits_longer_is_noticed_while_it_waits():
    known = gateway()
    known.look([submitted("key", 4.0), submitted("another", 90.0), submitted("key", 90.0, responding=True)])
    assert thought(known) == 5.1
    known.look([submitted("key", 6.0)])
    assert thought(known) is None


def test_the_keys_that_are_remembered_are_bounded():
    known = gateway("first")
    for number in range(KEYS_KEPT):
        known.ended(submitted(f"key{number}", 1.0).identified, Reason.CLIENT_LEFT)
    assert len(known._of) == KEYS_KEPT
    assert thought(known, "first") is None
