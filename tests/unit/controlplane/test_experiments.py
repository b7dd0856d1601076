"""Experiments count what their clients and the live feed saw, phase by phase."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from aiohttp import web
from django.core.management import CommandError, call_command

from controlplane.experiments.clients import Crowd, Drive, Sent
from controlplane.experiments.figures import summary
from controlplane.experiments.plan import catalog_of
from controlplane.experiments.pools import POOLS_1, POOLS_2
from controlplane.experiments.samples import Sample
from controlplane.experiments.shipped import EXPERIMENTS


def row(name, sent_s, status=200, reason="", ttft_s=None):
    return Sent(name, sent_s, status=status, reason=reason, ttft_s=ttft_s)


def line(found, phase, name):
    return next(r for r in found["phases"] if (r["phase"], r["entitlement"]) == (phase, name))


def test_a_request_counts_in_the_phase_in_which_it_was_sent():
    rows = [
        row("spot-b", 29.9, ttft_s=0.2),
        row("spot-b", 30.0, 429, "low_priority"),
        row("spot-b", 31.0, 429, "concurrency"),
        row("spot-b", 32.0, reason="ClientPayloadError"),
    ]
    found = summary(POOLS_1, rows, [])
    before, during = line(found, "1", "spot-b"), line(found, "2 overload", "spot-b")
    assert (before["sent"], before["completed"], before["refused"], before["ttft_p99_s"]) == (1, 1, 0, 0.2)
    assert (during["sent"], during["completed"], during["refused"], during["refused_low_priority"]) == (3, 0, 2, 1)


def test_an_entitlement_has_no_line_in_phases_in_which_it_was_not_there():
    found = summary(POOLS_1, [], [])
    assert [r["phase"] for r in found["phases"] if r["entitlement"] == "guaranteed-c"] == ["2 overload"]


def test_slots_debt_and_weight_come_from_the_live_feed():
    samples = [
        Sample(40.0 + i, 0, 8, 0, 8, {"elastic-synth": {"running": 2 + i, "debt": d, "weight": w}})
        for i, (d, w) in enumerate([(0.1, 20.0), (0.5, 60.0)])
    ]
    found = line(summary(POOLS_2, [], samples), "2 outage", "elastic-synth")
    assert (found["slots_mean"], found["debt_peak"]) == (2.5, 0.5)
    assert (found["weight_min"], found["weight_max"]) == (20.0, 60.0)


def test_utilization_is_of_the_slots_that_serve_and_leaves_out_the_filling_up():
    samples = [Sample(1.0, 0, 0, 0, 16), Sample(20.0, 3, 16, 1, 16), Sample(60.0, 5, 6, 0, 8)]
    pool = summary(POOLS_2, [], samples)["pool"]
    assert pool["utilization"] == pytest.approx((1.0 + 6 / 8) / 2)
    assert pool["queue_max"] == 5


def test_every_experiment_has_clients_for_its_members_inside_its_phases():
    for experiment in EXPERIMENTS.values():
        assert experiment.members
        for member in experiment.members:
            assert member.name == member.crowd.entitlement
            assert 0 <= member.crowd.starts_s < member.crowd.ends_s <= experiment.length_s


def test_without_admission_control_nobody_is_limited_or_told_apart():
    items = catalog_of(POOLS_1, "pool", admission=False)
    assert {i["spec"]["serviceClass"] for i in items if i["kind"] == "Tier"} == {"spot"}
    assert all(crowd.open_loop for crowd in POOLS_1.crowds(admission=False))


async def served(handler, crowd, **settings):
    app = web.Application()
    app.router.add_post("/v1/chat/completions", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        port = runner.addresses[0][1]
        drive = Drive(f"http://127.0.0.1:{port}", "m", {crowd.entitlement: "k"}, (crowd,), **settings)
        drive.begin()
        await drive.run()
        return drive.rows
    finally:
        await runner.cleanup()


def answer_of(text):
    async def handler(request):
        await request.read()
        return web.Response(text=text, content_type="text/event-stream")

    return handler


CROWD = Crowd("e", 2, 0.05, 0.0, 0.2, 8, (4, 4))
WHOLE = 'data: {"choices": [{"delta": {"content": "a"}}]}\n\ndata: [DONE]\n\n'


def test_a_stream_counts_as_completed_only_with_its_end():
    whole = asyncio.run(served(answer_of(WHOLE), CROWD))
    assert all(r.completed and r.ttft_s is not None for r in whole)
    cut = asyncio.run(served(answer_of(WHOLE.replace("data: [DONE]\n\n", "")), CROWD))
    assert {r.reason for r in cut} == {"cut"}
    told = asyncio.run(served(answer_of('data: {"error": {"code": "evicted"}}\n\n'), CROWD))
    assert {r.reason for r in told} == {"evicted"}


def test_a_refused_client_comes_back_when_it_was_told_to():
    async def refuse(request):
        await request.read()
        return web.Response(status=429, headers={"retry-after-ms": "60", "x-quartermaster-reason": "low_priority"})

    rows = asyncio.run(served(refuse, Crowd("e", 1, 0.001, 0.0, 0.2, 8, (4, 4))))
    assert {r.reason for r in rows} == {"low_priority"}
    gaps = [b.sent_s - a.sent_s for a, b in itertools.pairwise(rows)]
    assert gaps
    assert min(gaps) >= 0.06


def test_a_client_of_a_closed_loop_never_has_two_requests_open():
    open_now, most = 0, 0

    async def slow(request):
        nonlocal open_now, most
        await request.read()
        open_now += 1
        most = max(most, open_now)
        await asyncio.sleep(0.03)
        open_now -= 1
        return web.Response(text=WHOLE, content_type="text/event-stream")

    asyncio.run(served(slow, Crowd("e", 2, 0.001, 0.0, 0.15, 8, (4, 4))))
    assert most == 2


@pytest.mark.parametrize("name", ["pools-2", "canary"])
def test_an_experiment_whose_figures_cannot_be_kept_does_not_begin(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for options in (["--json", str(tmp_path / "none" / "out.json")], ["--plot", str(tmp_path / "file")]):
        with pytest.raises(CommandError, match=r"--json|--plot"):
            call_command("experiment", name, *options)
