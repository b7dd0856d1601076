"""Objects that are made quickly are those that their dataclass would have made."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, field, fields, replace
from typing import Any

import pytest

from scheduling.core.estimate.contracts import Prediction, PromptFacts
from scheduling.core.frozen import quickly_made
from scheduling.core.ledger.record import LedgerRecord
from scheduling.core.types import Estimate, QueuedRequest
from scheduling.state.types import Admission, RequestFacts, StoredRequest

QUICK = (LedgerRecord, QueuedRequest, Estimate, StoredRequest, RequestFacts, Admission, PromptFacts, Prediction)


def plain(quick: Any) -> Any:
    """The class as ``dataclass`` alone makes it."""
    body = {k: v for k, v in vars(quick).items() if k in ("__module__", "__doc__", "__annotations__", "__qualname__")}
    body |= {f.name: field(default=f.default) for f in fields(quick)}
    return dataclass(frozen=True, slots=True)(type(quick.__name__, (), body))


@dataclass(frozen=True, slots=True)
class Point:
    x: int
    y: int = 2


@pytest.mark.parametrize("quick", QUICK)
def test_arguments_and_defaults_are_those_of_the_dataclass(quick: Any):
    theirs = plain(quick)
    assert inspect.signature(quick).parameters.keys() == inspect.signature(theirs).parameters.keys()
    needed = [f"word {i}" for i, p in enumerate(inspect.signature(quick).parameters.values()) if p.default is p.empty]
    one, other = quick(*needed), theirs(*needed)
    assert [getattr(one, f.name) for f in fields(quick)] == [getattr(other, f.name) for f in fields(quick)]
    last = fields(quick)[-1].name
    assert getattr(quick(**{f.name: f.name for f in fields(quick)}), last) == last


@pytest.mark.parametrize("quick", QUICK)
def test_too_few_or_unknown_arguments_are_refused(quick: Any):
    with pytest.raises(TypeError):
        quick()
    with pytest.raises(TypeError):
        quick(**{f.name: 1 for f in fields(quick)}, nonsense=1)


@pytest.mark.parametrize("quick", QUICK)
def test_they_are_frozen_equal_hashed_copied_and_replaced_as_before(quick: Any):
    words = [f"word {i}" for i in range(len(fields(quick)))]
    one, same, other = quick(*words), quick(*words), quick(*words[:-1], "else")
    assert type(one) is quick
    with pytest.raises(FrozenInstanceError):
        setattr(one, fields(quick)[0].name, 1)
    with pytest.raises(FrozenInstanceError):
        delattr(one, fields(quick)[0].name)
    with pytest.raises((AttributeError, TypeError)):
        one.unheard_of = 1
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert replace(one, **{fields(quick)[-1].name: "else"}) == other
    assert copy.copy(one) == copy.deepcopy(one) == pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == repr(plain(quick)(*words)).replace("test_frozen.", "")


def test_what_would_be_left_out_is_refused():
    quickly_made(Point)
    assert Point(1) == Point(1, 2)

    @dataclass(frozen=True)
    class WithoutSlots:
        x: int

    @dataclass(frozen=True, slots=True)
    class Checked:
        x: int

        def __post_init__(self) -> None:
            raise ValueError

    @dataclass(frozen=True, slots=True)
    class Listing:
        x: list[int] = field(default_factory=list)

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Named:
        x: int

    @dataclass(frozen=True, slots=True)
    class More(Point):
        z: int = 3

    for cls in (WithoutSlots, Checked, Listing, Named, More):
        with pytest.raises(TypeError, match=cls.__name__):
            quickly_made(cls)
