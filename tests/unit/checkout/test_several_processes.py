"""What several processes of one run share out among them."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_a_files_tests_go_to_one_process(request: pytest.FixtureRequest) -> None:
    """Else each process starts what the file's tests share: instances, proxies, PostgreSQLs. xdist goes by the id."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("only where processes share the tests, as in `make test`")
    assert request.node.nodeid.endswith(f"@{Path(__file__).stem}")
