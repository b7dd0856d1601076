"""Redis over TLS: the same client through a TLS port, and no word to a server that is not who it says."""

from __future__ import annotations

import contextlib
import ssl
from pathlib import Path

import pytest
import redis.asyncio
from kombu import Connection

from controlplane.celery import broker_url
from scheduling.state.address import parse_url
from scheduling.state.resp import RespConnection
from scheduling.state.subscriber import Subscriber
from tests.support.gateway_world import until
from tests.support.tls import tls_port, write_certificate


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_certificate(tmp_path_factory.mktemp("tls") / "redis.pem")


def redis_port(redis_url: str, certificate: Path) -> contextlib.AbstractAsyncContextManager[int]:
    """A TLS port in front of the test's Redis (the bundled server has none)."""
    inside = parse_url(redis_url)
    return tls_port(inside.host, inside.port, certificate)


async def test_calls_and_notifications_travel_over_tls(redis_url: str, certificate: Path) -> None:
    heard: list[tuple[str, bytes]] = []
    async with redis_port(redis_url, certificate) as port:
        url = f"rediss://127.0.0.1:{port}/0?ssl_ca_certs={certificate}"
        resp = RespConnection(url, name="tls")
        subscriber = Subscriber(url, ["tls-test"], lambda channel, payload: heard.append((channel, payload)))
        try:
            assert await resp.start()
            assert await subscriber.start()
            assert await resp.call("ECHO", "x" * 100_000) == b"x" * 100_000
            for _ in range(100):
                if await resp.call("PUBLISH", "tls-test", "ding"):
                    break
            await until(lambda: ("tls-test", b"ding") in heard)
        finally:
            await subscriber.close()
            await resp.close()
        async with redis.asyncio.Redis.from_url(url) as library:  # what Channels, the cache and the notification use
            assert await library.ping()


async def test_an_unknown_authority_is_not_trusted_and_said_so(
    redis_url: str, certificate: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with redis_port(redis_url, certificate) as port:
        url = f"rediss://:hidden@127.0.0.1:{port}/0"
        for options, up in (
            ("", False),
            (f"?ssl_ca_certs={certificate}.missing", False),
            ("?ssl_cert_reqs=none", None),
        ):
            resp = RespConnection(url + options, name="tls")
            try:
                started = await resp.start()
                assert started is False  # the last one got in, but Redis wants no password
                assert ("AUTH" in caplog.messages[-1]) is (up is None)
            finally:
                await resp.close()
        assert "CERTIFICATE_VERIFY_FAILED" in caplog.messages[0]
        assert "hidden" not in caplog.text


def test_certificates_are_read_again_where_they_have_changed(tmp_path: Path) -> None:
    """And only then: who waits for Redis to come back tries every second, in the loop that serves streams."""
    file = write_certificate(tmp_path / "redis.pem")
    tls = parse_url(f"rediss://h/0?ssl_ca_certs={file}").tls
    assert tls
    first = tls.context()
    assert tls.context() is first
    write_certificate(tmp_path / "next.pem").replace(file)
    assert tls.context() is not first
    file.unlink()
    with pytest.raises(FileNotFoundError, match=r"redis\.pem"):
        tls.context()


@pytest.mark.parametrize("option", ["ssl_cert_reqs=perhaps", "ssl_check_hostname=1", "ssl_cacerts=x"])
def test_a_mistyped_option_is_an_error_and_not_less_safety(option: str) -> None:
    with pytest.raises(ValueError, match="Redis URL: "):
        parse_url(f"rediss://host/0?{option}")


@pytest.mark.parametrize("options", ["", "?ssl_ca_certs=/ca.pem"])
def test_celery_checks_certificates_too(options: str) -> None:
    with Connection(broker_url("rediss://host:1/0" + options)) as broker:
        assert broker.ssl["ssl_cert_reqs"] == ssl.CERT_REQUIRED
        assert broker.ssl.get("ssl_ca_certs", "") == options.partition("=")[2]
