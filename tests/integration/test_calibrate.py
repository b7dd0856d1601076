"""`manage.py calibrate` on simulated replicas: it finds what they are, and changes only what it is told to."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import StringIO
from pathlib import Path

import httpx
import pytest
from django.core.management import CommandError, call_command

from controlplane.calibration import Busy, Measured, changes, measure
from controlplane.management.commands import calibrate
from scheduling.core.engine.calibration import Proposal
from scheduling.core.types import BackendSpec, ServiceClass
from scheduling.engines.client import EngineError
from scheduling.engines.simulated.server import EngineOptions, SimulatedServer, serving
from tenants import services
from tenants.audit import SYSTEM
from tenants.models import AuditEntry, Backend, Entitlement, Pool, Slo, Tenant, Tier

OPTIONS = EngineOptions(model="demo", slots=12, kv_tokens=32_768)
QUICK = replace(OPTIONS, speed=8.0)  # a typical request takes an eighth of a second


def spec(server: SimulatedServer) -> BackendSpec:
    return BackendSpec("gpu-1", "llama", server.url, 8, 1000)


async def test_the_preset_behind_a_replica_is_found_again() -> None:
    async with serving(OPTIONS) as server:
        told: list[float] = []
        measured = await measure(spec(server), "demo", 12.0, passed=lambda done, total: told.append(done / total))
    assert measured.kv_tokens == 32_768
    assert measured.proposal.slots == 12
    truth, found = server.preset.step_time, measured.proposal.step_time
    assert found is not None
    assert found.t0 == pytest.approx(truth.t0, rel=0.25)
    full = found.step(0, 12, 12 * 100)
    assert full == pytest.approx(truth.step(0, 12, 12 * 100), rel=0.25)
    assert set(changes(spec(server), measured)) >= {"slots", "kv_tokens"}
    assert told == sorted(told)
    assert told[-1] > 0.9


async def test_a_replica_that_serves_others_is_left_alone() -> None:
    async with serving(OPTIONS) as server, httpx.AsyncClient() as other:
        body = {"model": "demo", "prompt": "x", "max_tokens": 4000, "ignore_eos": True}
        asking = asyncio.create_task(other.post(server.url + "/v1/completions", json=body, timeout=60))
        while not server.engine.running:
            await asyncio.sleep(0.01)
        with pytest.raises(Busy, match="1 requests run"):
            await measure(spec(server), "demo", 5.0)
        asking.cancel()


@contextmanager
def in_a_thread(options: EngineOptions) -> Iterator[SimulatedServer]:
    """A replica in a loop of its own: the command runs one itself."""
    ready, stop, found = threading.Event(), threading.Event(), []

    async def serve() -> None:
        async with serving(options) as server:
            found.append(server)
            ready.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(20)
    try:
        yield found[0]
    finally:
        stop.set()
        thread.join()


@pytest.mark.django_db
def test_nothing_changes_without_apply_and_with_it_the_audit_log_tells() -> None:
    pool = services.save(actor=SYSTEM, instance=Pool(slug="llama", model="demo"))
    with in_a_thread(QUICK) as server:
        row = Backend(slug="gpu-1", pool=pool, url=server.url, slots=8, kv_tokens=1000)
        services.save(actor=SYSTEM, instance=row)
        shown = StringIO()
        call_command("calibrate", "llama", seconds=5.0, stdout=shown)
        assert "nothing was changed; --apply" in shown.getvalue()
        assert Backend.objects.get().kv_tokens == 1000
        call_command("calibrate", "llama", backend=["gpu-1"], seconds=5.0, apply=True, stdout=shown)
    stored = Backend.objects.get()
    assert (stored.slots, stored.kv_tokens) == (12, 32_768)
    assert stored.tokens_per_s > 0
    assert AuditEntry.objects.get(action="calibrate").after["slots"] == 12


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "There is no pool 'nowhere'; there are: llama"),
        (["llama"], "has no backends"),
        (["llama", "--backend", "x"], "has no backend 'x'"),
        (["llama", "--seconds", "1"], "--seconds must be"),
        (["llama", "--prompt", "1"], "--prompt must be"),
        (["llama", "--no-load"], "give --config"),
        (["llama", "--no-load", "--config", "/nowhere/config.json"], "No such file"),
    ],
)
def test_a_wrong_word_is_answered_with_what_would_be_right(words: list[str], complaint: str) -> None:
    services.save(actor=SYSTEM, instance=Pool(slug="llama", model="demo"))
    with pytest.raises(CommandError, match=complaint):
        call_command("calibrate", *words)


@pytest.mark.django_db
def test_a_replica_that_does_not_answer_is_named() -> None:
    pool = services.save(actor=SYSTEM, instance=Pool(slug="llama", model="demo"))
    services.save(actor=SYSTEM, instance=Backend(slug="gpu-1", pool=pool, url="http://127.0.0.1:9", slots=8))
    with pytest.raises(CommandError, match=r"Backend gpu-1: GET /metrics failed"):
        call_command("calibrate", "llama", stdout=StringIO())


@pytest.mark.django_db
def test_kv_bytes_per_token_follow_from_the_models_own_file(tmp_path: Path) -> None:
    services.save(actor=SYSTEM, instance=Pool(slug="llama", model="demo"))
    path, shown = tmp_path / "config.json", StringIO()
    shape = {"num_hidden_layers": 28, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    path.write_text(json.dumps({**shape, "torch_dtype": "bfloat16"}))
    call_command("calibrate", "llama", config=path, no_load=True, apply=True, stdout=shown)
    assert Pool.objects.get().kv_bytes_per_token == 2 * 28 * 8 * 128 * 2
    assert "grouped-query attention" in shown.getvalue()
    path.write_text("[]")
    with pytest.raises(CommandError, match="not a JSON object"):
        call_command("calibrate", "llama", config=path, no_load=True, stdout=shown)


@pytest.mark.django_db
def test_a_replica_that_fails_keeps_no_other_from_being_measured() -> None:
    pool = services.save(actor=SYSTEM, instance=Pool(slug="llama", model="demo"))
    services.save(actor=SYSTEM, instance=Backend(slug="gpu-1", pool=pool, url="http://127.0.0.1:9", slots=8))
    with in_a_thread(OPTIONS) as server:
        services.save(actor=SYSTEM, instance=Backend(slug="gpu-2", pool=pool, url=server.url, slots=8, kv_tokens=1000))
        with pytest.raises(CommandError, match=r"Backend gpu-1: GET /metrics failed") as failed:
            call_command("calibrate", "llama", seconds=5.0, apply=True, stdout=StringIO(), stderr=StringIO())
    assert "gpu-2" not in str(failed.value)
    assert Backend.objects.get(slug="gpu-2").slots == 12


@pytest.mark.django_db
def test_a_smaller_replica_is_written_once_the_others_are_known_to_be_larger(monkeypatch: pytest.MonkeyPatch) -> None:
    """Together they hold what is promised, and the first one alone would not."""
    pool = services.save(actor=SYSTEM, instance=Pool(slug="llama", model="demo"))
    for name in ("gpu-1", "gpu-2"):
        row = Backend(slug=name, pool=pool, url=f"http://{name}:8000", slots=8, kv_tokens=100_000)
        services.save(actor=SYSTEM, instance=row)
    tenant = services.save(actor=SYSTEM, instance=Tenant(slug="acme"))
    slo = services.save(actor=SYSTEM, instance=Slo(slug="kept", ttft_s=5.0, tbt_s=0.2))
    tier = services.save(actor=SYSTEM, instance=Tier(slug="kept", service_class=ServiceClass.GUARANTEED, slo=slo))
    promise = Entitlement(slug="acme-llama", tenant=tenant, pool=pool, tier=tier, concurrency=16)
    services.save(actor=SYSTEM, instance=promise)

    async def measured(spec: BackendSpec, *_args: object, **_more: object) -> Measured:
        slots = 4 if spec.id == "gpu-1" else 12
        return Measured(None, (), Proposal(100.0, slots, None, 0.0, ()), 9.0, 40.0)

    monkeypatch.setattr(calibrate, "measure", measured)
    call_command("calibrate", "llama", apply=True, stdout=StringIO(), stderr=StringIO())
    assert dict(Backend.objects.values_list("slug", "slots")) == {"gpu-1": 4, "gpu-2": 12}


async def test_requests_that_do_not_fit_into_a_context_are_not_tried() -> None:
    async with serving(EngineOptions(model="demo", slots=32, kv_tokens=256)) as server:
        with pytest.raises(EngineError, match=r"its context is 256 tokens, and typical requests have up to 480"):
            await measure(spec(server), "demo", 5.0)


async def test_throughput_of_a_look_shorter_than_two_requests_is_not_proposed() -> None:
    """A prompt counts at once: it is in such a look, or is not."""
    async with serving(OPTIONS) as server:
        measured = await measure(spec(server), "demo", 5.0)
        assert 0 < measured.in_turn < 1
        assert re.search(r"throughput is left out: .* --seconds \d+$", measured.too_short)
        assert set(changes(spec(server), measured)) == {"slots", "kv_tokens"}
