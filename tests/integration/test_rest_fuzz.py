"""Requests drawn from the OpenAPI schema (schemathesis): as it describes them, and not as it describes them.

No answer is a 5xx, and every 2xx is what the schema says. ``make fuzz`` runs more of it on PostgreSQL:
``FUZZ_EXAMPLES`` of each kind for each operation, drawn from ``FUZZ_SEED``.
"""

from __future__ import annotations

import json
import os
import random
import re
from collections import Counter
from typing import Any
from urllib.parse import quote, urlencode

import pytest
import requests
import schemathesis
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.core import NotSet
from schemathesis.core.transport import Response

from tenants.api.views import TenantViewSet
from tests.support.api_inputs import Tried, places, tried, world

__all__ = ["places", "tried", "world"]  # fixtures
pytestmark = [pytest.mark.django_db, pytest.mark.timeout(1800)]

SEED = int(os.environ.get("FUZZ_SEED", "1"))
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "1"))
PART = int(os.environ.get("FUZZ_PART", "6"))  # one operation in so many, unless more is asked for
LONGEST = 400  # letters of a report


def _raw() -> dict[str, Any]:
    told: dict[str, Any] = json.loads(json.dumps(SchemaGenerator().get_schema(public=True)))
    return told


class Fuzzed:
    """Sends what is drawn, and keeps where the answer is not what the schema says."""

    def __init__(self, tried: Tried, places: dict[str, str]) -> None:
        self._tried = tried
        self._places = places
        self._draw = random.Random(SEED)
        self.calls: Counter[str] = Counter()
        self.breaches: dict[str, str] = {}

    def operation(self, operation: Any) -> None:
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

            @seed(SEED)
            @settings(
                max_examples=EXAMPLES,
                database=None,
                deadline=None,
                suppress_health_check=list(HealthCheck),
                phases=[Phase.generate],
            )
            @given(operation.as_strategy(generation_mode=mode))
            def one(case: Any) -> None:
                self._send(operation, case, mode)  # noqa: B023  called before the loop goes on

            try:
                one()
            except schemathesis.errors.SchemathesisError:  # nothing can be drawn: no way to be wrong
                self.calls["not drawn"] += 1

    def _send(self, operation: Any, case: Any, mode: GenerationMode) -> None:
        path = self._path(operation.path, case.path_parameters or {}, mode)
        if case.query:
            path += "?" + urlencode({str(k): _text(v) for k, v in dict(case.query).items()}, doseq=True)
        body = None
        if not isinstance(case.body, NotSet):
            body = case.body if isinstance(case.body, bytes) else json.dumps(case.body).encode("utf-8", "replace")
        status = self._tried(operation.method.upper(), path, body)
        self.calls[mode.value] += 1
        if 200 <= status < 300 and status != 204:
            self.compare(operation, status)

    def _path(self, path: str, drawn: dict[str, Any], mode: GenerationMode) -> str:
        """With rows that exist, so that more than a 404 is seen; sometimes as drawn."""
        as_drawn = self._draw.random() < (0.2 if mode is GenerationMode.POSITIVE else 0.5)

        def value(match: re.Match[str]) -> str:
            name = match.group(1)
            section = path[: match.start()].rstrip("/").rpartition("/")[2]
            known = self._places.get(section)
            if as_drawn or known is None:
                return quote(_text(drawn.get(name, "0")), safe="")
            return known

        return re.sub(r"{(\w+)}", value, path)

    def compare(self, operation: Any, status: int) -> None:
        headers, text = self._tried.last
        request = requests.Request(operation.method.upper(), "http://testserver" + operation.path).prepare()
        lower = {name.lower(): [value] for name, value in headers.items()}
        answer = Response(status, lower, text, request, 0.1, False)
        try:
            operation.validate_response(answer)
        except schemathesis.errors.SchemathesisError:
            raise
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, MemoryError)):
                raise
            said = " ".join(f"{each.title}: {each.message}" for each in getattr(error, "exceptions", [])) or str(error)
            self.breaches.setdefault(operation.label, said[:LONGEST])


def _text(value: Any) -> Any:
    if isinstance(value, list):
        return [_text(each) for each in value]
    return value if isinstance(value, str) else json.dumps(value)


def test_what_the_schema_describes_is_answered_as_it_says_and_nothing_with_a_5xx(
    tried: Tried, places: dict[str, str]
) -> None:
    fuzzed = Fuzzed(tried, places)
    operations = [found.ok() for found in schemathesis.openapi.from_dict(_raw()).get_all_operations()]
    for number, operation in enumerate(operations):
        if number % PART == SEED % PART:
            fuzzed.operation(operation)
    told = ", ".join(f"{count} answered {status}" for status, count in sorted(tried.answers.items()))
    print(f"seed {SEED}: {len(operations)} operations, {dict(fuzzed.calls)} requests; {told}")
    breaches = "\n".join(f"  {label}: {said}" for label, said in fuzzed.breaches.items())
    assert not tried.faults, tried.told()
    assert not fuzzed.breaches, f"{len(fuzzed.breaches)} answers are not what the schema says:\n{breaches}"


def test_an_answer_that_is_not_what_the_schema_says_and_a_5xx_are_found(
    tried: Tried, places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = _raw()
    raw["components"]["schemas"]["Tenant"]["properties"]["slug"] = {"type": "integer"}
    operation = schemathesis.openapi.from_dict(raw)["/api/v1/tenants/{slug}/"]["GET"]
    fuzzed = Fuzzed(tried, places)
    fuzzed.compare(operation, tried("GET", "/api/v1/tenants/acme"))
    assert "is not of type" in fuzzed.breaches["GET /api/v1/tenants/{slug}/"]
    monkeypatch.setattr(TenantViewSet, "get_queryset", lambda self: 1 / 0)
    assert tried("GET", "/api/v1/tenants/acme") == 500
    assert "ZeroDivisionError" in tried.told()
