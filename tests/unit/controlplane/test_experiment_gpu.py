"""The run on a GPU: the same load in every mode, parts that are kept, and figures that hide nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.experiments import gpu
from controlplane.experiments.gpu_engine import WATCHING, Server
from controlplane.experiments.gpu_load import Answered, Planned, Promises, digest_of, plan, summary, tiers
from controlplane.experiments.instance import ExperimentError
from scheduling.core.engine.calibration import StepFit
from scheduling.core.inside_engine.digest import decode
from scheduling.engines.vllm_plugin.settings import settings_of
from tests.support.logged_steps import TRUTH, steps

SETUP = gpu.Setup("", "tiny", 32, 4096, ("azure-code",), (2.0, 4.0), 5.0, Promises(1.0, 0.1, 10.0), 0)
SERVER = Server("", "tiny", 32, 4096, Path("nowhere"))
Q1, Q2, Q3 = tiers(SETUP.promises)


def answered(
    tier: Any = Q1, *, output: int = 3, arrivals: Sequence[float] = (0.5, 0.6, 0.7), done: bool = True
) -> Answered:
    row = Answered(Planned(0.0, tier, (5,) * 100, output), arrivals=list(arrivals))
    row.ttft_s = arrivals[0] if arrivals else None
    row.ttlt_s = arrivals[-1] if done and arrivals else None
    return row


def test_every_mode_is_asked_the_same() -> None:
    one, other = (plan("azure-conv", 5.0, 20.0, SETUP.promises, 4096, 3) for _ in range(2))
    assert one == other
    assert len(one) > 50
    assert {asked.tier.name for asked in one} == {"q1", "q2", "q3"}
    assert max(len(asked.prompt) + asked.output for asked in one) < 4096
    assert one != plan("azure-conv", 5.0, 20.0, SETUP.promises, 4096, 4)


def test_each_token_has_its_deadline_and_what_did_not_end_is_late() -> None:
    assert not answered().late
    assert answered(arrivals=(1.1, 1.11, 1.12)).late, "the first token"
    assert answered(arrivals=(0.9, 1.05, 1.25)).late, "the last one, 1.2 s"
    assert not answered(Q2, arrivals=(5.0, 9.0)).late
    assert answered(Q2, arrivals=(5.0, 11.0)).late
    assert answered(done=False).late


def test_a_summary_counts_what_was_refused_and_what_is_unknown_is_not_zero() -> None:
    refused = answered(arrivals=(), done=False)
    refused.status = "waking"
    told = summary([answered(), refused, answered(Q3, arrivals=(2.0,), output=1)], 5.0)
    assert (told["asked"], told["completed"], told["not_completed"]) == (3, 2, {"waking": 1})
    assert told["in_time"] == pytest.approx(2 / 3)
    assert told["goodput_per_s"] == pytest.approx(0.4)
    assert told["tokens_per_s"] == pytest.approx((103 + 101) / 5)
    nothing = summary([refused], 5.0)
    assert nothing["tiers"]["q1"]["ttft_p50_s"] is None


def test_engines_that_only_watch_leave_every_decision_to_vllm() -> None:
    settings = settings_of({"quartermaster": {"port": 9000, **WATCHING}})
    assert not any((settings.order, settings.chunks, settings.preempt_prefills, settings.victims))
    assert [mode.name for mode in gpu.MODES if mode.decides] == [gpu.INSIDE, gpu.PLUGIN, gpu.CREDITED]


def test_a_server_of_ones_own_gets_its_port_and_finds_the_plugin() -> None:
    argv, environ = Server("vllm serve big --port {port} --tp 2", "big", 64, 8192, Path("nowhere")).argv(8123)
    assert argv == ["vllm", "serve", "big", "--port", "8123", "--tp", "2"]
    assert environ["PYTHONPATH"].split(":")[0] == str(Path(gpu.__file__).parents[2])


class Standing:
    """An engine that logs two hundred steps for each part."""

    url = "http://engine"

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> Standing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def steps(self) -> list[dict[str, Any]]:
        return list(self.rows)

    def work(self) -> None:
        for step in steps(200, seed=len(self.rows)):
            number = len(self.rows) + 1
            self.rows.append({
                "kind": "step", "number": number, "ended_s": number / 50, "budget": 2048, "prefill": step.prefill,
                "decodes": step.decodes, "kv_dec": step.kv_dec, "pp": step.pp, "seconds": step.seconds,
            })  # fmt: skip


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Whose turn it was, without starting it; every request is answered at once."""
    started: list[str] = []
    now = [1000.0]
    running: list[Standing] = []
    sent: set[tuple[int, ...]] = set()

    def engine(server: Server, order: str, plugin: Mapping[str, Any], log: Path) -> Standing:
        now[0] += 40.0
        running.append(Standing())
        sent.clear()
        return running[-1]

    @contextmanager
    def serving(home: Path, server: Server, setup: gpu.Setup, mode: gpu.Mode, engine: Standing) -> Iterator[Any]:
        started.append(mode.name)
        now[0] += 20.0 if mode.kind else 0.0
        yield engine.url, server.model, {"q1": "k"} if mode.kind else None

    async def drive(
        url: str, model: str, asked: Sequence[Planned], *, keys: Mapping[str, str] | None = None, rank: bool = False,
        digest: bool = False,
    ) -> list[Answered]:  # fmt: skip
        now[0] += 30.0 if asked[-1].at_s > gpu.WARM_S else gpu.WARM_S
        assert not sent.intersection(one.prompt for one in asked), "the prefix cache would know it from another mode"
        sent.update(one.prompt for one in asked if len(one.prompt) > 8)
        if asked[-1].at_s > gpu.WARM_S:
            running[-1].work()
            assert rank == (started[-1] == gpu.PRIORITY)
            assert digest == (started[-1] == gpu.INSIDE), "a gateway sends it itself"
        return [
            answered(one.tier, output=one.output, arrivals=[0.1 + 0.01 * n for n in range(one.output)]) for one in asked
        ]

    class Clock:
        monotonic = staticmethod(lambda: now[0])
        sleep = staticmethod(lambda _: None)

    monkeypatch.setattr(gpu, "Engine", engine)
    monkeypatch.setattr(gpu, "serving", serving)
    monkeypatch.setattr(gpu, "drive", drive)
    monkeypatch.setattr(gpu, "time", Clock)
    return started


def test_a_call_ends_in_time_and_the_next_goes_on_where_it_ended(tmp_path: Path, starts: list[str]) -> None:
    path = tmp_path / "run.json"
    left = gpu.run(tmp_path, SERVER, SETUP, path, 3.0, lambda _: None)
    assert 0 < left < 12
    assert starts[0] == gpu.FCFS
    assert gpu.PLUGIN not in starts
    first = json.loads(path.read_text())["parts"]
    calls = 0
    while left:
        left, before = gpu.run(tmp_path, SERVER, SETUP, path, 3.0, lambda _: None), left
        assert left < before
        calls += 1
    assert calls >= 2
    parts = json.loads(path.read_text())["parts"]
    assert len(parts) == 12
    assert {key: parts[key] for key in first} == first, "what was kept is not run again"
    assert gpu.run(tmp_path, SERVER, SETUP, path, 3.0, lambda _: None) == 0


def test_a_call_that_is_too_short_for_any_part_says_so_and_how_long_it_has_to_be(
    tmp_path: Path, starts: list[str]
) -> None:
    """It would end at once each time, and ask to be called again."""
    path = tmp_path / "run.json"
    with pytest.raises(ExperimentError, match=r"a call has 36 s: set --call-minutes to \d\.\d or more") as said:
        gpu.run(tmp_path, SERVER, SETUP, path, 0.6, lambda _: None)
    assert starts == []
    enough = float(str(said.value).split("--call-minutes to ")[1].split()[0])
    assert gpu.run(tmp_path, SERVER, SETUP, path, enough, lambda _: None) < 12


def test_the_pools_of_the_modes_differ_in_their_engine_and_their_credit_only() -> None:
    pools = [gpu.catalog("p", SETUP, mode)[0]["spec"] for mode in gpu.MODES if mode.kind]
    assert [(pool.pop("engine"), pool.pop("prefillCredit")) for pool in pools] == [
        ("vllm", None), ("vllm_plugin", None), ("vllm_plugin", 1024),
    ]  # fmt: skip
    assert pools[0] == pools[1] == pools[2]


def test_each_tier_has_its_own_class_by_which_relegation_tells_them_apart() -> None:
    items = gpu.catalog("p", SETUP, gpu.MODES[2])
    tiers_of = {item["metadata"]["name"]: item["spec"] for item in items if item["kind"] == "Tier"}
    assert {name: spec["serviceClass"] for name, spec in tiers_of.items()} == {
        f"{tier.name}-tier": tier.service_class for tier in (Q1, Q2, Q3)
    }
    booked = [item["spec"]["resources"]["concurrency"] for item in items if "resources" in item["spec"]]
    assert sum(booked) <= SETUP.slots, "or not all would be bound"


def test_a_run_of_some_modes_starts_no_others(tmp_path: Path, starts: list[str]) -> None:
    setup = replace(SETUP, modes=(gpu.INSIDE, gpu.PRIORITY))
    assert gpu.run(tmp_path, SERVER, setup, tmp_path / "run.json", 60.0, lambda _: None) == 0
    assert starts == [gpu.PRIORITY, gpu.INSIDE]


def test_a_client_without_a_gateway_tells_the_plugin_what_a_gateway_would() -> None:
    for one in plan("azure-code", 4.0, 3.0, SETUP.promises, 4096, 0):
        request, pace = decode(digest_of(one, 31.0), "r", 1, 100.0, len(one.prompt), one.output)
        slo = one.tier.slo
        assert (request.rank, request.service_class, pace) == (one.tier.rank, one.tier.service_class, slo.tbt_s)
        assert request.output_tokens == 31.0, "not how long its answer will be"
        assert request.ttft_deadline_s == (None if slo.ttft_s is None else 100.0 + slo.ttft_s)
        assert request.ttlt_deadline_s == (None if slo.ttlt_s is None else 100.0 + slo.ttlt_s)


def test_a_file_of_another_setup_is_not_written_over(tmp_path: Path, starts: list[str]) -> None:
    path = tmp_path / "run.json"
    gpu.run(tmp_path, SERVER, SETUP, path, 3.0, lambda _: None)
    with pytest.raises(ExperimentError, match="of another setup"):
        gpu.run(tmp_path, SERVER, replace(SETUP, seed=1), path, 3.0, lambda _: None)


def test_a_part_has_the_fit_to_its_own_steps_and_what_the_lab_says_of_it(tmp_path: Path, starts: list[str]) -> None:
    path = tmp_path / "run.json"
    assert gpu.run(tmp_path, SERVER, SETUP, path, 60.0, lambda _: None) == 0
    report = json.loads(path.read_text())
    for part in report["parts"].values():
        assert part["steps"]["count"] == 200, "those before it are not its own"
        assert part["fit"]["t0"] == pytest.approx(TRUTH.t0, rel=0.2)
        assert len(part["steps"]["over_time"]) <= gpu.SHOWN
    assert report["parts"]["front azure-code 2/s"]["lab"]["in_time"] > 0
    assert report["parts"]["front+plugin azure-code 2/s"]["lab"] is None
    page = gpu.page(report, "manage.py experiment gpu", "2026-11-23")
    assert "**Not a GPU.**" in page
    assert page.count("| front") == 6
    assert set(gpu.drawings(report)) == {"gpu-attainment", "gpu-chunks"}


def test_the_lab_has_no_more_in_time_when_its_engine_is_slower() -> None:
    asked = plan("azure-code", 4.0, 20.0, SETUP.promises, 4096, 0)
    rows = [answered(one.tier, output=one.output, arrivals=[0.1] * one.output) for one in asked]
    for row, one in zip(rows, asked, strict=True):
        row.asked = one
    mode = gpu.MODES[0]
    fast, slow = (gpu.lab(SETUP, mode, rows, StepFit(TRUTH.slowed(f), 0.05, 900)) for f in (0.2, 20.0))
    assert fast["in_time"] > slow["in_time"]
    assert fast["ttft_p50_s"] < slow["ttft_p50_s"]


def test_a_page_of_a_run_that_was_cut_says_what_is_unknown(tmp_path: Path) -> None:
    part = summary([], 5.0) | {"load_average": [1.0, 2.0], "steps": gpu.described([]), "fit": None, "lab": None}
    report = {
        "machine": "m",
        "setup": json.loads(json.dumps(gpu.asdict(SETUP))),
        "parts": {"fcfs azure-code 2/s": part},
    }
    row = next(line for line in gpu.page(report, "c", "d").splitlines() if line.startswith("| fcfs"))
    assert row.split(" | ")[1] == "?, ?, ?, ?"
    assert "| ? |" in row
