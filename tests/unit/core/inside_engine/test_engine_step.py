"""Whose prompt an engine works on, and who gives way when its cache is full."""

from __future__ import annotations

from scheduling.core.inside_engine.step import Begun, hand_out, last_first, place_among_running, progressed
from scheduling.core.policies.registry import make_ordering, orderings
from scheduling.core.policies.rounds import Round
from scheduling.core.types import PoolView, QueuedRequest, ServiceClass

ROUND = Round(PoolView({}), lambda request: True)


def queued(name: str, prompt: int = 100, due: float | None = None, seq: int = 0) -> QueuedRequest:
    return QueuedRequest(
        name, seq, 0.0, "e", "t", "", 0, 1.0, ServiceClass.ELASTIC, prompt, 50, 10.0, prompt + 50, ttft_deadline_s=due
    )


def shared(
    waiting: list[QueuedRequest], begun: list[Begun], current: Begun | None, room: int, seats: int = 9
) -> tuple[list[tuple[str, int]], str, bool, set[str]]:
    queue = make_ordering("edf").queue()
    for request in waiting:
        queue.push(request, 0.0)
    left = [seats]

    def fits(request: QueuedRequest) -> bool:
        left[0] -= 1
        return left[0] >= 0

    shares = hand_out(queue, begun, current, fits, lambda context: room, ROUND, 0.0)
    return shares.tokens, shares.current, shares.blocked, {request.id for request in queue}


def test_what_is_in_progress_goes_on_and_the_rest_takes_turns_by_the_policy() -> None:
    current, paused = Begun(queued("c", 300, 9.0), 100, 200), Begun(queued("p", 300, 3.0), 200, 100)
    waiting = [queued("late", 100, 5.0), queued("soon", 100, 1.0)]
    tokens, open_one, blocked, left = shared(waiting, [current, paused], current, 450)
    assert tokens == [("c", 200), ("soon", 100), ("p", 100), ("late", 50)]
    assert open_one == "late"
    assert not blocked
    assert left == {"late", "soon"}, "what waits waits as before; what is begun is in no queue"


def test_what_was_interrupted_stands_where_the_policy_says() -> None:
    begun = Begun(queued("b", 300, 5.0), 100, 200)
    assert shared([queued("soon", 100, 1.0)], [begun], None, 150)[:2] == ([("soon", 100), ("b", 50)], "b")
    assert shared([queued("late", 100, 9.0)], [begun], None, 250)[:2] == ([("b", 200), ("late", 50)], "late")


def test_nobody_passes_over_what_finds_no_room_but_what_is_begun_goes_on_the_latest_first() -> None:
    begun = [Begun(queued("first", 300, 8.0), 100, 200), Begun(queued("latest", 300, 9.0), 100, 200)]
    waiting = [queued("soon", 100, 1.0), queued("next", 100, 2.0)]
    tokens, _, blocked, left = shared(waiting, begun, None, 250, seats=0)
    assert blocked
    assert tokens == [("latest", 200), ("first", 50)]
    assert left == {"soon", "next"}


def test_every_policy_places_what_runs_and_of_equals_the_last_admitted_gives_way() -> None:
    for name in orderings():
        place = place_among_running(make_ordering(name))
        requests = [progressed(queued(str(n), due=5.0), 100, n) for n in range(4)]
        order = last_first([(place(request), n, request.id) for n, request in enumerate(requests)], 4)
        assert sorted(order) == ["0", "1", "2", "3"]
        assert last_first([((1.0,), 1, "a"), ((1.0,), 2, "b")], 2) == ["b", "a"]


def test_by_gittins_the_victim_has_outlived_the_short_answers() -> None:
    place = place_among_running(make_ordering("gittins", {"bucket_tokens": 10}))
    both = [
        QueuedRequest(
            name, 0, 0.0, "e", "t", "", 0, 1.0, ServiceClass.ELASTIC, 50, 900, 300.0, 950, generated=generated,
            output_lengths=(50.0, 900.0), output_probabilities=(0.7, 0.3),
        )
        for name, generated in (("outlived", 80), ("fresh", 20))
    ]  # fmt: skip
    assert last_first((place(request), 0, request.id) for request in both)[0] == "outlived"
