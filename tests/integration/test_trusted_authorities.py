"""Engines and receivers by TLS: every part trusts the same authorities, and says why it does not trust somebody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from scheduling import tls
from scheduling.core.types import BackendSpec
from scheduling.engines.client import control_http
from scheduling.engines.kinds.vllm import VllmClient
from scheduling.gateway.engine.engine_connection import UpstreamError
from scheduling.gateway.engine.upstream import Backend
from telemetry.alerts.webhook import WebhookError, send
from tests.support.fake_engine import FakeEngine
from tests.support.tls import tls_port, write_certificate

_JSON = {"content-type": "application/json"}


@pytest.fixture
def _read_anew() -> Iterator[None]:
    tls.authorities.cache_clear()
    yield
    tls.authorities.cache_clear()


async def asked_by_each(certificate: Path) -> dict[str, str]:
    """What the leader, a gateway and alerts say of an engine with this certificate; empty: all is well."""
    engine = FakeEngine()
    await engine.start()
    try:
        port = int(engine.url.rpartition(":")[2])
        async with tls_port("127.0.0.1", port, certificate) as secure, control_http() as http:
            url, said = f"https://127.0.0.1:{secure}", dict.fromkeys(("leader", "gateway", "alerts"), "")
            probe = await VllmClient(url, http=http, model=engine.model).probe()
            said["leader"] = "" if probe else probe.why
            backend = Backend(BackendSpec("b", "pool", url, 4, 1000), 5.0)
            try:
                (await backend._connect()).abort()
            except UpstreamError as error:
                said["gateway"] = str(error)
            try:
                await asyncio.to_thread(send, f"{url}/hook", b"{}", _JSON, "the webhook")
            except WebhookError as error:
                said["alerts"] = "" if "answered" in str(error) else str(error)
            return said
    finally:
        await engine.stop()


@pytest.mark.usefixtures("_read_anew")
async def test_an_authority_of_the_system_is_trusted_by_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = write_certificate(tmp_path / "engine.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    assert await asked_by_each(certificate) == {"leader": "", "gateway": "", "alerts": ""}


@pytest.mark.usefixtures("_read_anew")
@pytest.mark.parametrize(
    ("trusted", "address", "hours", "why"),
    [
        (False, "127.0.0.1", (-1, 1), "self-signed certificate"),
        (True, "127.0.0.1", (-9, -1), "certificate has expired"),
        (True, "127.0.0.9", (-1, 1), "IP address mismatch, certificate is not valid for '127.0.0.1'."),
    ],
)
async def test_every_part_says_why_a_certificate_is_not_accepted(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    trusted: bool,
    address: str,
    hours: tuple[int, int],
    why: str,
) -> None:
    certificate = write_certificate(tmp_path / "engine.pem", address, hours)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    for who, said in (await asked_by_each(certificate)).items():
        assert f"its certificate is not accepted: {why}" in said, who
