"""The answer to a wrong request is bounded, however long what was sent is."""

from __future__ import annotations

import pytest
from rest_framework.exceptions import ErrorDetail, ValidationError
from rest_framework.test import APIClient

from tenants.api import faults
from tests.support import worlds

LONG = "<b>" + "A" * 100_000
MOST = 5_000  # bytes


@pytest.fixture
def api() -> APIClient:
    client = APIClient()
    client.force_authenticate(worlds.build().users["adam"])
    return client


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("memberships", {"user": LONG, "tenant": LONG, "role": LONG}),
        ("memberships", {"user": [LONG], "tenant": {LONG: LONG}, "role": [LONG]}),
        ("estimates/reset", {"pool": LONG, "category": LONG}),
        ("engine-check", {"url": LONG, "engine": {LONG: LONG}}),
        ("tenants", {"slug": "acme", LONG: 1}),
    ],
)
def test_a_wrong_body_is_not_repeated_at_any_length(api: APIClient, path: str, body: object) -> None:
    answer = api.post(f"/api/v1/{path}", body, format="json")
    assert answer.status_code == 400
    assert len(answer.content) < MOST, answer.json().keys()


@pytest.mark.django_db
@pytest.mark.parametrize("query", ["pools?" + "A" * 20_000 + "=1", "requests?outcome=" + "A" * 20_000])
def test_a_wrong_address_is_not_repeated_at_any_length(api: APIClient, query: str) -> None:
    answer = api.get(f"/api/v1/{query}")
    assert answer.status_code == 400
    assert len(answer.content) < MOST


@pytest.mark.django_db
def test_a_list_of_wrong_values_has_so_many_sentences_and_no_more(api: APIClient) -> None:
    body = {"name": "ci", "entitlements": ["x"] * 10_000}
    answer = api.post("/api/v1/keys", body, format="json")
    assert answer.status_code == 400
    assert len(answer.content) < 100 * faults.MOST_LETTERS
    told = [[ErrorDetail(f"{number} is wrong.")] if number % 2 else {} for number in range(10_000)]
    response = faults.answer(ValidationError({"rows": told}), {})
    assert response is not None
    assert len(response.data["rows"]) == faults.MOST_SENTENCES


def test_of_a_long_sentence_the_beginning_and_the_end_are_said() -> None:
    response = faults.answer(ValidationError({"user": [f"There is no user '{LONG}' here."]}), {})
    assert response is not None
    [said] = response.data["user"]
    assert said.startswith("There is no user '<b>AAA")
    assert said.endswith("AAA' here.")
    assert len(said) <= faults.MOST_LETTERS


def test_what_is_short_is_said_as_it_is_and_other_faults_are_not_answered() -> None:
    told = {"slug": ["Use letters."], "rows": [{}, {"name": ["This is required."]}], "limits": {"a": ["b"]}}
    response = faults.answer(ValidationError(told), {})
    assert response is not None
    assert response.data == told
    assert faults.answer(ZeroDivisionError(), {}) is None
