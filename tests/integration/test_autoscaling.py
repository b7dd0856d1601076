"""`make up` under a load that triples: replicas follow within the cooldown, drain when it is over, lose no request."""

from __future__ import annotations

import asyncio
import json
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.support.instance import Up

COOLDOWN_S = 10
SLOTS = 8


def configure(up: Up, tmp_path: Path, **scaling: Any) -> None:
    """One elastic tenant with room for everything, and a pool that scales by itself."""
    pool = up.demo()["pool"]
    items = [
        {"kind": "Slo", "metadata": {"name": "swift"}, "spec": {"ttftSeconds": 0.15, "tbtSeconds": 0.2}},
        {"kind": "Tier", "metadata": {"name": "patient"}, "spec": {
            "serviceClass": "elastic", "slo": "swift", "overLimit": "wait", "queueLimit": 100, "maxWaitSeconds": 60,
        }},
        {"kind": "TokenPool", "metadata": {"name": pool}, "spec": {"model": up.demo()["model"], "scaling": scaling}},
        *(
            {"kind": "TokenEntitlement", "metadata": {"name": f"{tenant}-{pool}"}, "spec": {
                "tenantRef": {"name": tenant}, "poolRef": {"name": pool}, "qos": {"tier": tier},
                "resources": {"concurrency": concurrency},
            }}
            for tenant, tier, concurrency in (("acme", "premium", 1), ("globex", "patient", 7))
        ),
    ]  # fmt: skip
    paper = tmp_path / "scaling.json"  # JSON is YAML
    paper.write_text(json.dumps({"apiVersion": "quartermaster/v1", "kind": "List", "items": items}))
    up.manage("apply", "-f", str(paper), "--yes")


class Load:
    """Clients in a closed loop: each sends its next request when the last has ended."""

    def __init__(self, up: Up) -> None:
        demo = up.demo()
        self.url = f"{up.url}/v1/chat/completions"
        self.headers = {"authorization": f"Bearer {demo['keys']['batch']}"}
        self.body = {
            "model": demo["model"],
            "max_tokens": 120,
            "stream": True,
            "messages": [{"role": "user", "content": "Go on."}],
        }
        self.statuses: list[int] = []
        self.faults: list[str] = []
        self._clients: list[asyncio.Task[None]] = []

    async def set(self, http: aiohttp.ClientSession, clients: int) -> None:
        while len(self._clients) < clients:
            self._clients.append(asyncio.create_task(self._client(http)))
        stopping = [self._clients.pop() for _ in range(len(self._clients) - clients)]
        for task in stopping:
            task.cancel("after this one")
        await asyncio.gather(*stopping, return_exceptions=True)

    async def _client(self, http: aiohttp.ClientSession) -> None:
        while True:
            request = asyncio.create_task(self._one(http))
            try:
                await asyncio.shield(request)
            except asyncio.CancelledError:
                await request  # what was begun is ended: a client that leaves proves nothing
                raise

    async def _one(self, http: aiohttp.ClientSession) -> None:
        try:
            async with http.post(self.url, json=self.body, headers=self.headers) as answer:
                content = await answer.text()
                self.statuses.append(answer.status)
                if answer.status != 200 or not content.rstrip().endswith("data: [DONE]"):
                    self.faults.append(f"{answer.status} {content[-500:]}")
                    await asyncio.sleep(0.2)
        except aiohttp.ClientError as error:
            self.faults.append(repr(error))


async def until(condition: Any, seconds: float) -> float:
    began = time.monotonic()
    async with asyncio.timeout(seconds):
        while not await condition():
            await asyncio.sleep(0.25)
    return time.monotonic() - began


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_replicas_follow_a_load_that_triples_and_no_request_is_lost_when_they_go(tmp_path: Path) -> None:
    up = Up(
        tmp_path / "home",
        QUARTERMASTER_SIM_REPLICAS="1",
        QUARTERMASTER_SIM_SLOTS=str(SLOTS),
        QUARTERMASTER_SIM_PRESET="llama-3-8b-a100",
    )
    os.makedirs(up.home, exist_ok=True)
    up.start()
    try:
        await asyncio.to_thread(up.wait_ready)
        await asyncio.to_thread(
            configure, up, tmp_path, mode="automatic", minReplicas=1, maxReplicas=4, driver={"name": "local"},
            upCooldownSeconds=COOLDOWN_S, downCooldownSeconds=COOLDOWN_S * 1.5, headroom=0.2,
        )  # fmt: skip
        pool = up.demo()["pool"]
        token = (await asyncio.to_thread(up.manage, "token", "admin")).split()[-1]
        headers = {"authorization": f"Bearer {token}"}
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(timeout=timeout) as http:

            async def scaling() -> dict[str, Any]:
                async with http.get(f"{up.url}/api/v1/pools/{pool}/scaling", headers=headers) as answer:
                    return dict(await answer.json())

            async def ready() -> int:
                async with http.get(f"{up.url}/readyz") as answer:
                    return int((await answer.json())["pools"][pool]["ready_backends"])

            async def grown_to_three() -> bool:
                return await ready() >= 3

            async def back_to_one() -> bool:
                return await ready() == 1

            async def attainment(since: datetime, until: datetime) -> float:
                query = {"group_by": "entitlement", "from": since.isoformat(), "to": until.isoformat()}
                async with http.get(f"{up.url}/api/v1/usage", params=query, headers=headers) as answer:
                    (row,) = (await answer.json())["rows"]
                return row["slo_met"] / row["slo_total"]

            load = Load(up)
            load.headers = {"authorization": f"Bearer {up.demo()['keys']['standard']}"}
            await load.set(http, 5)
            await asyncio.sleep(8)
            assert await ready() == 1, "five of eight slots need no second replica"
            began, tripled = datetime.now(tz=UTC) - timedelta(seconds=8), datetime.now(tz=UTC)
            await load.set(http, 15)
            followed_s = await until(grown_to_three, 60)
            grown = datetime.now(tz=UTC)
            at_peak = len(load.statuses)
            await until(_async(lambda: len(load.statuses) > at_peak + 100), 60)
            settled = datetime.now(tz=UTC)
            await load.set(http, 4)
            drained_s = await until(back_to_one, 120)
            await until(_async(lambda: not list((up.home / "replicas").glob("*.json"))), 60)
            after = len(load.statuses)
            await until(_async(lambda: len(load.statuses) > after + 10), 60)
            await load.set(http, 0)
            seen = await scaling()
            await asyncio.sleep(3)  # the last ledger entries are on their way
            met = [await attainment(*span) for span in ((began, tripled), (tripled, grown), (grown, settled))]
        assert load.faults == []
        assert set(load.statuses) == {200}
        moves = [(d["from_replicas"], d["to_replicas"], d["outcome"]) for d in reversed(seen["decisions"])]
        print(
            f"followed after {followed_s:.1f} s, drained after {drained_s:.1f} s, {len(load.statuses)} requests", moves
        )
        assert moves[0][0] == 1
        assert moves[-1][1] == 1
        assert {outcome for *_, outcome in moves} <= {"done", "superseded"}
        engines = [p for p in psutil.Process(up.process.pid).children() if "simulated" in " ".join(p.cmdline())]
        assert len(engines) == 1, "a replica that was ended still runs"
        print("SLO attained before, while growing, after:", *(f"{share:.1%}" for share in met))
        assert met[2] > met[1], "more replicas did not help"
    finally:
        assert await asyncio.to_thread(up.stop) == 0


def _async(check: Any) -> Any:
    async def ask() -> bool:
        return bool(check())

    return ask
