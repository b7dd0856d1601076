"""What a release consists of: ``python -m tests.support.release TAG FOLDER`` (make release-files TAG=v0.5.0).

The tree as an archive, the plugin's wheel, the bill of materials, the changelog's section as notes, and SHA256SUMS of
all. The same commit gives the same bytes. Refused where the tag, the files that name the version and the changelog do
not agree.
"""

from __future__ import annotations

import gzip
import hashlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml

from tests.support import provenance

ROOT = Path(__file__).resolve().parents[2]


class Refused(Exception):
    """This tree is not that release."""


def notes(changelog: str, version: str) -> str:
    """What the changelog says of a version. Raises Refused where it says nothing, or has no date."""
    found = re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d\n(.*?)(?=^## |\Z)", changelog, re.M | re.S)
    if found is None or not found[1].strip():
        raise Refused(f"CHANGELOG.md has no dated section [{version}] with entries: cut it from [Unreleased] first")
    return found[1].strip() + "\n"


def versions() -> dict[str, str]:
    """What each file that names the version says. The plugin's wheel and the chart are released with the rest."""
    found = {
        name: tomllib.loads((ROOT / name).read_text(encoding="utf-8"))["project"]["version"]
        for name in ("pyproject.toml", "deploy/vllm-plugin/pyproject.toml")
    }
    chart = "deploy/helm/quartermaster/Chart.yaml"
    told = yaml.safe_load((ROOT / chart).read_text(encoding="utf-8"))
    return found | {f"{chart} (appVersion)": told["appVersion"]}


def checked(tag: str, named: dict[str, str], changelog: str) -> tuple[str, str]:
    """Version and notes of a tag. ``named``: what :func:`versions` found."""
    version = tag.removeprefix("v")
    if not re.fullmatch(r"v\d+\.\d+\.\d+", tag):
        raise Refused(f"{tag!r}: a release's tag is v and three numbers, such as v0.5.0")
    others = [f"{file} {text}" for file, text in named.items() if text != version]
    if others:
        raise Refused(f"the tag says {version}, {', '.join(others)}")
    return version, notes(changelog, version)


def archive(commit: str, version: str, target: Path) -> Path:
    """The tree of a commit: what git has of it, without the times of this machine."""
    prefix = f"quartermaster-{version}/"
    tar = subprocess.run(
        ["git", "archive", "--format=tar", f"--prefix={prefix}", commit], cwd=ROOT, capture_output=True, check=True
    ).stdout
    file = target / f"quartermaster-{version}.tar.gz"
    file.write_bytes(gzip.compress(tar, mtime=0))
    return file


def sums(folder: Path) -> str:
    """Digests of the files of a folder, in the form that ``sha256sum -c`` reads."""
    left_out = ("SHA256SUMS", "notes.md")
    files = sorted(file for file in folder.iterdir() if file.name not in left_out and not file.name.startswith("."))
    return "".join(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)


def main(tag: str, folder: str) -> int:
    target = Path(folder)
    try:
        version, told = checked(tag, versions(), (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"))
    except Refused as error:
        print(error, file=sys.stderr)
        return 1
    target.mkdir(parents=True, exist_ok=True)
    archive(tag, version, target)
    provenance.wheel(target)
    (target / ".gitignore").unlink(missing_ok=True)  # uv's: nothing of a release begins with a dot
    if provenance.sbom(target / f"quartermaster-{version}.cdx.json"):
        return 1
    (target / "notes.md").write_text(told, encoding="utf-8")
    (target / "SHA256SUMS").write_text(sums(target), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2]))
