"""`make up` with a pool that may have no replica: it goes to zero by itself, and the next request is served."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.instance import Up, until

POOL = "sleepy"
SLEEPS_AFTER_S, WAKES_IN_S = 10, 120
COMES_S = 180.0  # what a test waits for comes sooner


def configure(up: Up, tmp_path: Path) -> None:
    """A pool without any backend, of the demo's model; one tenant that waits and one that does not."""
    items: list[dict[str, Any]] = [
        {"kind": "Slo", "metadata": {"name": "calm"}, "spec": {"ttftSeconds": 60.0, "tbtSeconds": 1.0}},
        {"kind": "TokenPool", "metadata": {"name": POOL}, "spec": {
            "model": POOL, "upstreamModel": up.demo()["model"], "scaling": {
                "mode": "automatic", "minReplicas": 0, "maxReplicas": 2, "sleepAfterSeconds": SLEEPS_AFTER_S,
                "wakesInSeconds": WAKES_IN_S, "driver": {"name": "local", "params": {"slots": 8, "kv_tokens": 64_000}},
            },
        }},
    ]  # fmt: skip
    for tenant, wait_s in (("patient", 300), ("hasty", 0.5)):
        items += [
            {"kind": "Tenant", "metadata": {"name": tenant}, "spec": {}},
            {"kind": "Tier", "metadata": {"name": tenant}, "spec": {
                "serviceClass": "elastic", "slo": "calm", "overLimit": "wait", "queueLimit": 100,
                "maxWaitSeconds": wait_s,
            }},
            {"kind": "TokenEntitlement", "metadata": {"name": f"{tenant}-{POOL}"}, "spec": {
                "tenantRef": {"name": tenant}, "poolRef": {"name": POOL}, "qos": {"tier": tenant},
                "resources": {"concurrency": 4},
            }},
        ]  # fmt: skip
    paper = tmp_path / "catalog.json"
    paper.write_text(json.dumps({"apiVersion": "quartermaster/v1", "kind": "List", "items": items}))
    up.manage("apply", "-f", str(paper), "--yes")


def issue(up: Up, tenant: str) -> str:
    return up.manage(
        "shell", "--no-imports", "-c",
        "from tenants import services; from tenants.audit import SYSTEM; from tenants.models import Entitlement; "
        f"print(services.issue_key(actor=SYSTEM, name='t', entitlement=Entitlement.objects.get(slug='{tenant}-{POOL}'))"
        ".credential.text)",
    ).split()[-1]  # fmt: skip


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    made = Up(tmp_path / "home", QUARTERMASTER_SIM_REPLICAS="1", QUARTERMASTER_SIM_SLOTS="8")
    made.home.mkdir()
    made.start()
    try:
        made.wait_ready()
        yield made
    finally:
        assert made.stop() == 0


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_first_request_after_zero_is_served_and_one_that_would_not_wait_is_told_when_to_return(
    up: Up, tmp_path: Path
) -> None:
    configure(up, tmp_path)
    patient, hasty = (issue(up, tenant) for tenant in ("patient", "hasty"))
    token = up.manage("token", "admin").split()[-1]
    body = {"model": POOL, "max_tokens": 4, "messages": [{"role": "user", "content": "Wake up."}]}

    with httpx.Client(base_url=up.url, timeout=400.0, trust_env=False) as http:

        def ask(key: str) -> httpx.Response:
            return http.post("/v1/chat/completions", json=body, headers={"authorization": f"Bearer {key}"})

        def scaling() -> dict[str, Any]:
            return dict(http.get(f"/api/v1/pools/{POOL}/scaling", headers={"authorization": f"Bearer {token}"}).json())

        def asleep() -> Any:
            pool = http.get("/readyz").json()["pools"].get(POOL, {})
            return not list((up.home / "replicas").glob("*.json")) and pool.get("wakes_in_s")

        assert until(asleep, COMES_S) == WAKES_IN_S
        began = time.monotonic()
        first = ask(patient)
        woke_s = time.monotonic() - began
        assert first.status_code == 200, first.text
        assert first.headers["x-quartermaster-wakes-s"] == str(WAKES_IN_S)
        began = time.monotonic()
        assert ask(patient).status_code == 200
        awake_s = time.monotonic() - began
        again_s = until(asleep, COMES_S)
        assert 1.0 <= again_s < WAKES_IN_S, "as long as it took"

        refused = ask(hasty)
        assert refused.status_code == 503, refused.text
        assert refused.headers["x-quartermaster-reason"] == "waking"
        assert 1.0 <= float(refused.headers["retry-after"]) <= WAKES_IN_S
        assert until(lambda: ask(hasty).status_code == 200 or time.sleep(1), COMES_S)
        until(asleep, COMES_S)
        moves = [(d["from_replicas"], d["to_replicas"], d["outcome"]) for d in reversed(scaling()["decisions"])]
        assert moves == [(0, 1, "done"), (1, 0, "done")] * 2
        alerts = up.manage(
            "shell", "--no-imports", "-c",
            "from telemetry.models import Alert; kinds = ['backend_health', 'scaling_failed']; "
            "print([a.line for a in Alert.objects.filter(pool='sleepy', kind__in=kinds)])",
        )  # fmt: skip
        assert alerts.strip() == "[]"
    print(f"first request after zero: {woke_s:.1f} s, the next {awake_s:.2f} s; the pool learned {again_s:.1f} s")
