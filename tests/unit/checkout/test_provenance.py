"""What is shipped can be traced: its licences, parts, bytes and images."""

from __future__ import annotations

import email.message
import hashlib
import json
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from tests.support import provenance

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")

# Licences that go with Apache-2.0, as packages write them. LGPL and MPL: used as they are, unchanged, as libraries.
ALLOWED = {
    "0BSD", "3-Clause BSD License", "Apache Software License", "Apache-2.0", "BSD", "BSD 3-Clause", "BSD License",
    "BSD-2-Clause", "BSD-3-Clause", "CC0-1.0", "LGPL-3.0-only", "MIT", "MIT License", "MIT-0",
    "MPL-2.0", "Mozilla Public License 2.0 (MPL 2.0)", "PSF-2.0", "Public Domain", "Python Software Foundation License",
    "Zlib", "ISC", "Unlicense",
}  # fmt: skip
# What the names of these do not tell, by having read their licence: BSD-3-Clause, and MIT for what it was ported from,
# which it calls "Other/Proprietary".
READ = {"qrcode": {"BSD License", "Other/Proprietary License"}}
# Other systems' and older Pythons' parts of the lock, which are not installed here.
ELSEWHERE = {"async-timeout", "colorama", "httpx2-jsfetch", "tzdata"}


def licences(told: metadata.PackageMetadata) -> set[str]:
    """The licences that a package names; an empty set where it names none."""
    classifiers = [text.split(" :: ")[-1] for text in told.get_all("Classifier") or [] if text.startswith("License ::")]
    expression = told.get("License-Expression") or "; ".join(classifiers) or (told.get("License") or "").split("\n")[0]
    return {part.strip() for part in re.split(r" AND | OR |; ", expression) if part.strip()}


def test_every_package_of_the_lock_has_a_licence_that_we_may_ship_with() -> None:
    names = provenance.names_of()
    assert len(names) > 50
    wrong, absent = {}, set()
    for name in names:
        try:
            found = licences(metadata.metadata(name))
        except metadata.PackageNotFoundError:
            absent.add(name)
            continue
        if not found or not found <= ALLOWED | READ.get(name, set()):
            wrong[name] = sorted(found)
    assert wrong == {}, "see the licence; if it goes with Apache-2.0, add its name to ALLOWED"
    assert absent <= ELSEWHERE


def test_a_licence_that_is_not_allowed_is_found() -> None:
    for text in ("GPL-3.0-only", "Apache-2.0 AND GPL-3.0-only", ""):
        found = licences(_told(text))
        assert not found or not found <= ALLOWED
    assert licences(_told("Apache-2.0 OR BSD-3-Clause")) <= ALLOWED


def _told(expression: str) -> metadata.PackageMetadata:
    message = email.message.Message()
    if expression:
        message["License-Expression"] = expression
    return message  # type: ignore[return-value]


def test_an_audit_that_could_not_look_says_so_and_one_that_found_something_fails(capsys: pytest.CaptureFixture) -> None:
    skipped = {"name": "a", "skip_reason": "not found"}
    good, bad = {"name": "b", "version": "1", "vulns": []}, {"name": "c", "version": "2", "vulns": [{"id": "CVE-1"}]}
    assert provenance.report([skipped]) == 0
    assert "skipped: the package index here knows no vulnerabilities; 0 of 1" in capsys.readouterr().out
    assert provenance.report([skipped, good]) == 0
    assert "1 of 2 packages audited, 0 with" in capsys.readouterr().out
    assert provenance.report([good, bad]) == 1
    assert "CVE-1" in capsys.readouterr().out


def test_the_wheel_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    try:
        wheels = [provenance.wheel(tmp_path / name) for name in ("first", "second")]
    except provenance.Unreachable as error:
        pytest.skip(str(error))
    first, second = (hashlib.sha256(one.read_bytes()).hexdigest() for one in wheels)
    assert first == second
    assert wheels[0].name == wheels[1].name


def test_the_bill_of_materials_names_what_the_lock_has(tmp_path: Path) -> None:
    target = tmp_path / "sbom.json"
    try:
        assert provenance.sbom(target) == 0
    except provenance.Unreachable as error:
        pytest.skip(str(error))
    told = json.loads(target.read_text(encoding="utf-8"))
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    assert {part["name"] for part in told["components"]} == set(provenance.names_of())


def test_an_image_runs_as_nobody_and_has_neither_tests_nor_their_servers() -> None:
    last = DOCKERFILE[DOCKERFILE.rindex("\nFROM ") :]
    user = re.findall(r"^USER (\S+)$", last, re.MULTILINE)
    assert user
    assert user[-1] not in ("0", "root")
    assert last.index(f"USER {user[-1]}") < last.index("\nCMD ")
    copied = re.findall(r"^COPY (?:--from=\S+ )?(\S+)", last, re.MULTILINE)
    assert not {one.strip("/").split("/")[0] for one in copied} & {
        "tests",
        "deploy",
        ".",
        "docs",
        "requirements-dev.lock",
    }
    assert "requirements.lock" in DOCKERFILE
    assert "--require-hashes" in DOCKERFILE
    development = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]["test"]
    shipped = set(provenance.names_of())
    for requirement in development:
        name = re.split(r"[^a-z0-9-]", requirement.lower())[0]
        assert name not in shipped or name in {"openai"}, f"{name} is a test's"


@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13", "3.14"])
def test_every_supported_python_can_read_the_tree(version: str) -> None:
    python = shutil.which(f"python{version}")
    if python is None or subprocess.run([python, "-c", ""], capture_output=True).returncode:
        pytest.skip(f"no Python {version} here")
    parts = ("scheduling", "tenants", "telemetry", "controlplane")
    files = [str(path) for part in parts for path in (ROOT / part).rglob("*.py")]
    code = "import ast, sys\nfor name in sys.stdin.read().split(): ast.parse(open(name, encoding='utf-8').read(), name)"
    answer = subprocess.run([python, "-W", "error", "-c", code], input="\n".join(files), capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
