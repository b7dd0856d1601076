"""The proxy of the compose file with its shipped Caddyfile, and the names of compose's network.

What a container engine gives is given here: the name ``web`` resolves to all web containers that run, each at an
address of its own and all at one port. Caddy comes from ``CADDY``, the path, or the wheel.
"""

from __future__ import annotations

import os
import shutil
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx

from tests.support.compose_parts import Parts, wait
from tests.support.instance import ROOT
from tests.support.ports import free_port

A_RECORD = 1
SETTINGS = dict(
    line.split("=", 1)
    for line in (ROOT / "deploy" / "quartermaster.env.example").read_text(encoding="utf-8").splitlines()
    if "=" in line and not line.startswith("#")
)


def program() -> str:
    """Caddy's, or empty where there is none."""
    beside = Path(sys.executable).with_name("caddy")
    return os.environ.get("CADDY") or shutil.which("caddy") or (str(beside) if beside.exists() else "")


class Names:
    """A name server that answers every question for an address with those of all web containers."""

    def __init__(self, addresses: Callable[[], list[str]]) -> None:
        self._addresses = addresses
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            asked, client = self._socket.recvfrom(512)
            if not asked:  # nobody asks so
                return
            with suppress(OSError):  # whoever asked has gone
                self._socket.sendto(self._answer(asked), client)

    def _answer(self, asked: bytes) -> bytes:
        end = asked.index(b"\0", 12) + 5
        [kind] = struct.unpack("!H", asked[end - 4 : end - 2])
        found = self._addresses() if kind == A_RECORD else []
        head = asked[:2] + struct.pack("!HHHHH", 0x8580, 1, len(found), 0, 0)
        record = struct.pack("!HHHIH", 0xC00C, A_RECORD, 1, 0, 4)
        return head + asked[12:end] + b"".join(record + socket.inet_aton(one) for one in found)

    def close(self) -> None:
        self._socket.sendto(b"", self._socket.getsockname())
        self._thread.join()
        self._socket.close()


class Webs:
    """Web containers: each at an address of its own, all at one port."""

    def __init__(self, parts: Parts, **settings: str) -> None:
        self.parts, self.settings, self.port = parts, settings, free_port()
        self.addresses: dict[str, str] = {}  # of those whose process runs
        self._last = 1

    def start(self, name: str) -> None:
        self._last += 1
        address = f"127.0.0.{self._last}"
        settings = {name: value for name, value in SETTINGS.items() if name.startswith("QUARTERMASTER_")}
        settings |= {
            "QUARTERMASTER_HOST": address,
            "QUARTERMASTER_PORT": str(self.port),
            "QUARTERMASTER_TRUSTED_PROXIES": "127.0.0.1",  # where the proxy is
        }
        self.parts.start("web", name, **settings | self.settings)
        self.addresses[name] = address

    def ready(self, name: str) -> bool:
        """As a readiness probe asks."""
        try:
            answer = httpx.get(f"http://{self.addresses[name]}:{self.port}/readyz", headers={"host": "localhost"})
        except httpx.TransportError:
            return False
        return answer.is_success

    def listed(self) -> list[str]:
        """What a container engine's name server says: whoever runs, ready or not."""
        started = list(self.addresses.items())  # in one step: the name server asks on a thread of its own
        return [address for name, address in started if self.parts.running[name].poll() is None]

    def stop(self, name: str, patience_s: float | None = None) -> float:
        """As a container is stopped: SIGTERM, and killed after its grace period, compose's unless one is given. How
        long it took."""
        process = self.parts.running[name]
        if patience_s is None:
            patience_s = float(self.parts.service("web")["stop_grace_period"].removesuffix("s"))
        began = time.monotonic()
        process.terminate()
        process.wait(patience_s)
        del self.addresses[name]
        return time.monotonic() - began


@contextmanager
def proxy(
    folder: Path, webs: Webs, listed: Callable[[], list[str]] | None = None
) -> Iterator[tuple[str, ssl.SSLContext]]:
    """Its URL, and what trusts its certificate. The shipped file, with ports and folders of this machine."""
    names = Names(listed or webs.listed)
    port = free_port()
    text = (ROOT / "deploy" / "caddy" / "Caddyfile").read_text(encoding="utf-8")
    own = f"\n\thttp_port {free_port()}\n\thttps_port {port}\n\tadmin off\n\tskip_install_trust\n\tservers {{"
    replaced = {
        "\n\tservers {": own,
        "port 8000": f"port {webs.port}\n\t\t\tresolvers 127.0.0.1:{names.port}",
    }
    for shipped, here in replaced.items():
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, here)
    file = folder / "Caddyfile"
    file.write_text(text, encoding="utf-8")
    environ = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "XDG_DATA_HOME": str(folder),
        "XDG_CONFIG_HOME": str(folder),
    }
    with (folder / "proxy.log").open("ab") as log:
        process = subprocess.Popen(
            [program(), "run", "--config", str(file), "--adapter", "caddyfile"], env=environ, stdout=log, stderr=log
        )
    root = folder / "caddy" / "pki" / "authorities" / "local" / "root.crt"
    try:
        url = f"https://localhost:{port}"
        wait(root.exists)
        trusts = ssl.create_default_context(cafile=str(root))
        with httpx.Client(verify=trusts, timeout=5.0) as http:
            wait(lambda: process.poll() is None and http.get(f"{url}/healthz").status_code in (200, 502, 503))
        yield url, trusts
    finally:
        process.terminate()
        process.wait(30)
        names.close()
