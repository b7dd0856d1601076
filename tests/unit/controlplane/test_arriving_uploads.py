"""What uploads take of the temporary folder before they have ended."""

from __future__ import annotations

from contextlib import suppress

import pytest

from controlplane.batches.arriving import IN_ALL, OF_TENANT, Arriving
from controlplane.v1_routes import Problem
from scheduling.core.outcomes import Reason
from scheduling.gateway.errors import Refusal, message_of

LARGEST, ROOMY = 100, 10_000


def test_a_tenant_has_few_files_on_their_way_whether_they_say_their_size_or_not() -> None:
    arriving = Arriving(LARGEST)
    with arriving.upload("acme", ROOMY) as said, arriving.upload("acme", ROOMY) as silent:
        said.is_of(LARGEST)
        said.is_of(10)  # of what it said before
        for size in range(0, LARGEST + 1, 10):
            silent.is_of(size)
        assert arriving.bytes_of("acme") == (OF_TENANT * LARGEST, 0)
        with arriving.upload("acme", ROOMY) as third, pytest.raises(Refusal) as refused:
            third.is_of(1)
        assert refused.value.reason is Reason.TENANT_CONNECTIONS
        assert "200 of 200 bytes of uploads of this tenant" in message_of(refused.value.reason, **refused.value.fields)
        with arriving.upload("globex", ROOMY) as other:
            other.is_of(LARGEST)
    assert arriving.bytes_of("acme") == (0, 0)


def test_all_tenants_together_fill_no_more_than_the_process_has_for_them() -> None:
    arriving = Arriving(LARGEST)
    taken = 0
    for number in range(2 * IN_ALL):
        one = arriving.upload(f"t{number}", ROOMY).__enter__()
        with suppress(Refusal):
            for size in range(1, LARGEST + 1):
                one.is_of(size)
        taken += arriving.bytes_of(f"t{number}")[0]
    assert IN_ALL * LARGEST - 2 <= taken <= IN_ALL * LARGEST
    with arriving.upload("late", ROOMY) as late, pytest.raises(Refusal) as refused:
        late.is_of(2)
    said = message_of(refused.value.reason, **refused.value.fields)
    assert f"{taken} of 800 bytes of uploads of all" in said, "it is nothing of this tenant's"


def test_tenants_that_declare_files_and_send_nothing_leave_room_to_others() -> None:
    """Four tenants with two files each filled a process: no other's smallest file was taken for ten minutes."""
    arriving = Arriving(LARGEST)
    for number in range(8):
        one = arriving.upload(f"t{number % 4}", ROOMY).__enter__()
        with suppress(Refusal):
            one.is_of(LARGEST)
    with arriving.upload("late", ROOMY) as late:
        late.is_of(LARGEST // 2)
    with arriving.upload("later", ROOMY) as later:
        later.is_of(LARGEST // 4)


@pytest.mark.usefixtures("db")
def test_what_comes_without_a_size_is_refused_as_soon_as_the_tenant_has_no_room_for_it() -> None:
    arriving = Arriving(LARGEST)
    with arriving.upload("acme", 50) as one, arriving.upload("acme", 50) as two:
        one.is_of(30)
        two.is_of(20)
        with pytest.raises(Problem, match="Delete some first"):
            two.is_of(21)
