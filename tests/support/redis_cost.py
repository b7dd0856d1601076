"""What a request asks of Redis, in a few situations that stand for the others: the same calls that a gateway makes,
with records of the same length, so that commands, bytes and instructions can be counted.

The figures of a request are those of a running instance (a short answer of its demo), its times among them.
:mod:`tests.bench.bench_redis_instructions` counts instructions, ``tests/integration/test_redis_cost.py`` the others.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from controlplane.embedded.valkey import ENVIRON
from scheduling.core.outcomes import Reason
from scheduling.core.placement.rule import write_points
from scheduling.core.types import EntitlementSpec, Estimate, QueuedRequest, Slo, Standing
from scheduling.state.resp import RespConnection
from scheduling.state.script import CLOCK_TICK_MS, Script, load_scripts
from scheduling.state.store import PoolStore
from scheduling.state.types import CLOCK_GAP_MS, Admission, AdmissionStatus, RequestFacts
from tests.support.redis_server import RedisServer
from tests.support.state_model.scripts import variants
from tests.support.state_world import backend, entitlement, leads_on, ledger, pool_spec, request, tier

POOL = "llama-3-8b"
# As `make up` starts its server, but for its clock, which would run now and then and not by what is asked of it.
OPTIONS = ("--hash-max-listpack-entries", "8", "--hz", "1", "--dynamic-hz", "no")
ARRIVED_S = 1796135345.5761023
CONVERSATION = write_points(
    4096.0, [(f"{0x1F3D5B79A2C4 + n:012x}", 512 * (n + 1)) for n in range(6)]
)  # of a prompt of 3,500 tokens


@dataclass(frozen=True)
class Situation:
    """Who else is there while the requests come that are counted."""

    name: str
    streamed: bool = False  # its first token is told
    replicas: int = 1
    others: int = 0  # tenants that have a request in flight on each replica
    at_once: int = 1
    rich: bool = False  # with a budget, limits of its key and user, and a prompt whose beginnings are known


SITUATIONS = (
    Situation("whole answer, 1 replica"),
    Situation("stream, 1 replica", streamed=True),
    Situation("whole answer, 4 replicas", replicas=4),
    Situation("stream, 4 replicas", streamed=True, replicas=4),
    Situation("whole answer, 4 replicas, 20 others", replicas=4, others=20),
    Situation("stream, 4 replicas, 20 others", streamed=True, replicas=4, others=20),
    Situation("whole answer, 4 replicas, 32 at once", replicas=4, at_once=32),
    Situation("stream, 4 replicas, 32 at once", streamed=True, replicas=4, at_once=32),
    Situation("stream of a conversation with limits", streamed=True, replicas=4, rich=True),
)


class Load:
    """The calls of one situation on a server, over one connection as a gateway's."""

    def __init__(self, server: RedisServer, situation: Situation, scripts: Mapping[str, Script] | None = None) -> None:
        self.situation = situation
        # nothing is asked by a timer, and a server that runs under valgrind may take its time
        self._resp = RespConnection(server.url, call_timeout=120.0, silence=120.0)
        self.store = PoolStore(self._resp, POOL, scripts=scripts)
        self._numbers = itertools.count(1)
        self._pool = pool_spec(POOL, model=POOL, headroom_slots=43, queue_limit=10_000)

    async def __aenter__(self) -> Load:
        await self._resp.start()
        while not self._resp.available:  # under valgrind the first attempts may be given up
            await asyncio.sleep(0.05)
        await self._resp.call(b"FLUSHALL")
        epoch = (await self.store.elect("vm-15117-3d5cd6", 0, first_start=True)).epoch
        await leads_on(self.store)
        await self._resp.call(b"HSET", self.store._key("meta"), b"kept", b"43")
        own = self._spec("globex")
        for n in range(self.situation.replicas):
            name = f"engine-{n}"
            offer = replace(backend(name, slots=128, kv_tokens=526_240), prefill_tokens=100_000, step_tokens=768)
            await self.store.set_ready(epoch, name, offer)
            if self.situation.rich:
                await self.store.set_cached(epoch, name, 700, 8192)
        specs = [own, *(self._spec(f"tenant-{n:02}") for n in range(self.situation.others))]
        await self.store.set_standing(epoch, {s.id: Standing(95.283018868) for s in specs})
        for spec in specs[1:]:
            for _ in range(self.situation.replicas):
                await self._admit(spec)
        for _ in range(2):
            await self.requests(self.situation.at_once)  # whatever a first request brings with it
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._resp.close()

    async def requests(self, count: int) -> None:
        """So many, as many at once as the situation has: admitted, told of where they stream, ended."""
        spec = self._spec("globex")
        for _ in range(count // self.situation.at_once):
            granted = await asyncio.gather(*(self._admit(spec) for _ in range(self.situation.at_once)))
            if self.situation.streamed:
                await self.store.first_tokens([(name, 1) for name, _ in granted])
            await asyncio.gather(*(self._finish(name, admission) for name, admission in granted))

    async def _admit(self, spec: EntitlementSpec) -> tuple[str, Admission]:
        name = f"req_{0x01A232025DA88E1D64C10B88 + next(self._numbers):024x}"
        est = Estimate(20, 16, 15.68954004250092, 36, 36)
        if self.situation.rich:
            est = Estimate(3500, 16, 15.68954004250092, 3516, 3516)
        asked = self._request(name, spec, est)
        of_key, of_user = "~globex:k:kkDo09ev8SjJ", "~globex:uk:kkDo09ev8SjJ:5f2b9c01d3e4"
        words = f"3516 {of_key}=600000,{10**9},100 {of_user}=600000,{10**9},100"
        facts = RequestFacts(
            model=POOL, key_id="kkDo09ev8SjJ", streamed=self.situation.streamed, slo=Slo(5.0, 0.2),
            limits=words if self.situation.rich else "",
        )  # fmt: skip
        admission = await self.store.admit(spec, self._pool, asked, est, 153, facts, sent_s=ARRIVED_S + 0.0101)
        assert admission.status is AdmissionStatus.GRANTED, admission
        return name, admission

    def _request(self, name: str, spec: EntitlementSpec, est: Estimate) -> QueuedRequest:
        return request(
            name, spec, est, arrival_s=ARRIVED_S, ttft_deadline_s=ARRIVED_S + 5, expires_s=ARRIVED_S + 60,
            gateway="gw-07a3c6d8", output_lengths=(11.032640680014719, 16.0), output_probabilities=(0.0625, 0.9375),
            pace_us=170_000, prefixes=CONVERSATION if self.situation.rich else "",
        )  # fmt: skip

    async def _finish(self, name: str, admission: Admission) -> None:
        used = 3516 if self.situation.rich else 37
        record = ledger(
            name, Reason.LENGTH, pool=POOL, model=POOL, tenant="globex", entitlement=f"globex-{POOL}",
            key_id="kkDo09ev8SjJ", gateway="gw-07a3c6d8", streamed=self.situation.streamed, backend=admission.backend,
            input_tokens_est=used - 16, output_tokens_est=15.68954004250092, output_bound=16,
            input_tokens=used - 16, output_tokens=16, received_s=ARRIVED_S, granted_s=ARRIVED_S + 0.011,
            first_token_s=None, done_s=ARRIVED_S + 0.255, ttft_slo_s=5.0, tbt_slo_s=0.2, category="short_qa",
            estimate_source="prior", output_tokens_p90=16.0, output_rank=0.53125,
            admission='{"answer":"granted","inflight":1,"concurrency":102,"kv":36}',
        )  # fmt: skip
        await self.store.finish(name, 1, Reason.LENGTH, used, True, record)

    def _spec(self, tenant: str) -> EntitlementSpec:
        budget = {"tokens_per_s": 1e6, "burst_tokens": 1e9} if self.situation.rich else {}
        return entitlement(
            f"{tenant}-{POOL}", POOL, tenant=tenant, tier=tier(queue_limit=500), concurrency=102, **budget
        )


@dataclass(frozen=True)
class Cost:
    """Of one request."""

    commands: dict[str, float]  # that its scripts ran, by name
    received: float  # bytes that the server read
    appended: float  # bytes that its append-only file grew by


async def cost(situation: Situation, count: int) -> Cost:
    """What a server with an append-only file does for a request, on the mean of so many."""
    server = RedisServer(appendonly=True, options=OPTIONS)
    server.start()
    scripts = load_scripts()  # that write the time once, and not each 100 ms: counts do not depend on the machine
    for name in ("TICK", "GAP"):
        there = f"local CLOCK_{name}_MS = {CLOCK_TICK_MS if name == 'TICK' else CLOCK_GAP_MS}\n"
        scripts = variants(scripts, there, f"local CLOCK_{name}_MS = 3600000\n")
    try:
        async with Load(server, situation, scripts) as load:
            before = _counted(server)
            await load.requests(count)
            after = _counted(server)
    finally:
        server.stop()
    spent = {name: (after[name] - before[name]) / count for name in after}
    received, appended = spent.pop("received"), spent.pop("appended")
    ours = {"evalsha", "info"}  # the calls themselves, and this measurement
    return Cost({n: calls for n, calls in spent.items() if calls and n not in ours}, received, appended)


def _counted(server: RedisServer) -> Counter[str]:
    """How often the server ran each command so far, and its bytes."""
    found: Counter[str] = Counter()
    for line in server.command("INFO", "everything").decode().splitlines():
        if match := re.match(r"cmdstat_(\S+?):calls=(\d+)", line):
            found[match[1]] = int(match[2])
        elif match := re.match(r"(total_net_input_bytes|aof_current_size):(\d+)", line):
            found["received" if match[1].startswith("total") else "appended"] = int(match[2])
    return found


async def instructions(situation: Situation, count: int) -> tuple[float, Counter[str]]:
    """How many instructions a server needs for a request, by callgrind; in all, and by function of the server."""
    with tempfile.TemporaryDirectory(prefix="qm-callgrind-") as folder:
        counting = ("valgrind", "--tool=callgrind", f"--callgrind-out-file={folder}/out")
        server = RedisServer(appendonly=True, under=counting, options=OPTIONS, environ=ENVIRON)
        server.start()
        try:
            async with Load(server, situation) as load:
                await asyncio.to_thread(_control, server.pid, "--zero")
                await load.requests(count)
                await asyncio.to_thread(_control, server.pid, "--dump")
        finally:
            server.stop()
        lines = next(Path(folder).glob("out*.1")).read_text().splitlines()
    total = next(int(line.split()[1]) for line in lines if line.startswith(("summary:", "totals:")))
    return total / count, Counter({name: own / count for name, own in _by_function(lines).items()})


def _control(pid: int, what: str) -> None:
    subprocess.run(["callgrind_control", what, str(pid)], check=True, capture_output=True)


def _by_function(lines: Iterable[str]) -> Counter[str]:
    """Instructions of each function itself, of what callgrind has written."""
    names: dict[str, str] = {}
    own: Counter[str] = Counter()
    current, called = "", False
    for line in lines:
        if line.startswith("fn="):
            number, _, name = line[3:].partition(" ")
            names.setdefault(number, name)
            current = names[number]
        elif line.startswith("cfn="):
            number, _, name = line[4:].partition(" ")
            if name:
                names.setdefault(number, name)
        elif line.startswith("calls="):
            called = True  # the next line says what the called one took
        elif line[:1] in "0123456789+-*" and line:
            if not called:
                own[current] += int(line.split()[1])
            called = False
    return own
