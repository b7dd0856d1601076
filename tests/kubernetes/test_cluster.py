"""What the tests of this folder rely on: the API server that they share."""

from __future__ import annotations

import httpx
import pytest

from tests.support.kubernetes_cluster import Cluster

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(300)]


def test_the_api_server_is_back_when_a_test_fails_while_it_is_away(there: Cluster) -> None:
    namespace = there.call("GET", "/api/v1/namespaces/inference")["metadata"]["uid"]
    first = there.api_server

    def fails() -> None:
        with there.away():
            with pytest.raises(httpx.TransportError):
                there.client.get("/readyz")
            raise AssertionError("in the test")

    with pytest.raises(AssertionError, match="in the test"):
        fails()
    assert first.poll() is not None
    assert there.api_server.poll() is None
    assert there.call("GET", "/api/v1/namespaces/inference")["metadata"]["uid"] == namespace, "with what it had"
