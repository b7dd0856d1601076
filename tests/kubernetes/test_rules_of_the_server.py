"""What a real API server takes of a resource, and what it keeps, is what the quick tests go by."""

from __future__ import annotations

import pytest

from tests.support.kubernetes_cluster import Cluster
from tests.support.kubernetes_rules import cases, stored

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


def test_the_api_server_takes_and_keeps_what_the_quick_tests_say(there: Cluster) -> None:
    wrong: list[str] = []
    compared = 0
    # 1.20, at least as it is built here, judges "" and 0 as if they were null: "" is refused where null is, and any
    # other rule about them is passed over. The operator refuses or takes them as REST does, once they are there.
    takes_nothing_for_null = there.call("GET", "/version")["minor"].startswith("20")
    for case in cases():
        body = case.resource()
        answer = there.client.post(there.path(case.kind), json=body, params={"dryRun": "All"})
        assert answer.status_code in (201, 400, 422), (str(case), answer.text)
        kept = answer.json()["spec"] if answer.status_code == 201 else None
        expected = stored(body)
        compared += 1
        if kept != expected and not (takes_nothing_for_null and case.value in ("", 0)):
            wrong.append(f"{case}: the server {kept or answer.json()['message'][:300]}, expected {expected}")
    assert not wrong, "\n".join(wrong)
    assert compared > 500
