"""A URL of the management API asks for what is documented, and for nothing else."""

from __future__ import annotations

import pytest
from rest_framework.test import APIClient

from tests.support import worlds
from tests.support.api_inputs import OPERATIONS, filled, places, world

__all__ = ["places", "world"]
pytestmark = pytest.mark.django_db
READS = [(path, operation) for verb, path, operation, _ in OPERATIONS if verb == "get"]


def documented(operation: dict) -> list[str]:
    return [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]


def test_whatever_can_be_read_refuses_what_it_does_not_know_and_says_what_there_is(
    world: worlds.World, places: dict[str, str]
):
    api = APIClient()
    api.force_authenticate(world.users["adam"])
    assert len(READS) > 50
    deaf, wrong = [], []
    for path, operation in READS:
        answer = api.get(f"{next(filled(path, places))}?surely=1")
        told = answer.json() if answer.status_code == 400 else {}
        if "There is no such parameter." not in str(told.get("surely")):
            deaf.append((path, answer.status_code))
        elif missing := [name for name in documented(operation) if name not in told["surely"][0]]:
            wrong.append((path, missing))
    assert not deaf
    assert not wrong, "documented, and not accepted"


@pytest.mark.parametrize(
    ("path", "meant"),
    [("requests?outcom=refused", "outcome"), ("events?pol=llama", "pool"), ("tenants?serch=a", "search"),
     ("alerts?stat=open", "state"), ("requests/explore?goup_by=tier", "group_by"), ("audit?tennant=acme", "tenant")],
)  # fmt: skip
def test_a_misspelled_filter_is_told_with_the_one_that_was_meant(path: str, meant: str, world: worlds.World):
    api = APIClient()
    api.force_authenticate(world.users["adam"])
    answer = api.get(f"/api/v1/{path}")
    assert answer.status_code == 400
    assert f"Did you mean '{meant}'?" in str(answer.json())


def test_of_two_thousand_unknown_parameters_twenty_are_named(world: worlds.World):
    api = APIClient()
    api.force_authenticate(world.users["adam"])
    answer = api.get("/api/v1/tenants?" + "&".join(f"a{n}=1" for n in range(900)))
    assert answer.status_code == 400
    assert len(answer.json()) == 21
    assert answer.json()["non_field_errors"] == ["880 more parameters are unknown."]
