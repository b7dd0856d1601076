"""What an engine says of itself, or is said to have answered, stands in events and alerts whatever letters it has, and
keeps nothing of other pools from being written."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
from django.db import OperationalError

from scheduling.engines.client import EngineRefused
from telemetry.events import A_MINUTE, Happenings
from telemetry.models import PoolEvent

pytestmark = pytest.mark.django_db
NUL_INSIDE = "POST /v1/completions answered 500: \x00 gone"


def shot(pool: str, at: float, state: str, why: str = "") -> dict[str, Any]:
    backends = {"b1": {"state": state, "why": why}}
    return {"pool": pool, "at": at, "epoch": 1, "leader": "w", "policy": "unified", "backends": backends}


def test_an_engines_words_hold_up_no_other_event() -> None:
    kept = Happenings()
    kept.add(shot("evil", 0.0, "ready"))
    kept.add(shot("evil", 1.0, "ejected", NUL_INSIDE))
    kept.add(shot("good", 2.0, "ready"))
    kept.add(shot("good", 3.0, "ejected", "it does not answer"))
    lines = list(PoolEvent.objects.order_by("at").values_list("line", flat=True))
    assert "it does not answer" in lines[-1]
    assert "answered 500" in lines[1]


def test_the_words_of_a_refused_call_are_one_line_that_can_be_stored() -> None:
    said = EngineRefused("POST /v1/completions", 500, "Internal\x00 Server\r\n\x1b[2J Error")
    assert str(said) == "POST /v1/completions answered 500: Internal Server [2J Error"


def test_a_pool_with_many_events_takes_no_others_places_while_the_database_is_away() -> None:
    kept = Happenings()
    with mock.patch.object(PoolEvent.objects, "bulk_create", side_effect=OperationalError("away")):
        kept.add(shot("good", 0.0, "ready"))
        for minute in range(20):
            for flap in range(A_MINUTE):
                kept.add(shot("noisy", 60.0 * minute + flap, "ready" if flap % 2 else "ejected"))
    kept.add(shot("noisy", 1200.0, "ready"))
    assert PoolEvent.objects.filter(pool="good").count() == 1
    assert PoolEvent.objects.filter(pool="noisy").count() < 500
