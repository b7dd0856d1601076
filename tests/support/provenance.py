"""What the product is made of, and whether it can be trusted: SBOM, known vulnerabilities, secrets, wheel.

    python -m tests.support.provenance sbom FILE     CycloneDX of requirements.lock
    python -m tests.support.provenance audit         known vulnerabilities of what the lock names
    python -m tests.support.provenance secrets       credentials in files that git has
    python -m tests.support.provenance wheel FOLDER  the wheel of deploy/vllm-plugin, the same bytes each time

The tools are fetched by uv, by exact version, into environments of their own. Where no package index answers, or none
that knows vulnerabilities, a command says so and ends with 0: no network is no finding. What was found ends with 1.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
UV = Path(sys.executable).with_name("uv")
LOCK = ROOT / "requirements.lock"
CYCLONEDX = "cyclonedx-bom==7.5.0"
PIP_AUDIT = "pip-audit==2.10.1"
DETECT_SECRETS = "detect-secrets==1.5.0"
SETUPTOOLS = "setuptools==80.9.0"  # builds wheels; another one may write others
EPOCH = "315532800"  # 1980, the first year that a wheel's archive can name
# Looks of a credential. What merely looks random is in every test and lock.
# Nor passwords in addresses: pages and settings show such as examples.
GUESSES = ("Base64HighEntropyString", "HexHighEntropyString", "KeywordDetector", "BasicAuthDetector")
OWN_KEYS = re.compile(rb"qma?-[a-z0-9]{8,12}\.[A-Za-z0-9_-]{32,}")
NOT_HERE = (
    "Failed to fetch",
    "dns error",
    "No solution found",
    "Could not connect",
    "not found in the package registry",
)


class Unreachable(Exception):
    """The tool could not be fetched."""


def tool(package: str, *words: str, timeout_s: float = 600) -> subprocess.CompletedProcess[str]:
    """Runs a program of a package. Raises Unreachable where there is no such package to be had."""
    answer = subprocess.run(
        [UV, "tool", "run", "--from", package, *words], cwd=ROOT, capture_output=True, text=True, timeout=timeout_s
    )
    if answer.returncode and any(sign in answer.stderr for sign in NOT_HERE):
        raise Unreachable(f"{package} cannot be fetched here")
    return answer


def names_of(lock: Path = LOCK) -> list[str]:
    """The distributions that a lock names."""
    return re.findall(r"^([a-z0-9][a-z0-9._-]*)==", lock.read_text(encoding="utf-8"), re.MULTILINE)


def sbom(target: Path) -> int:
    answer = tool(
        CYCLONEDX, "cyclonedx-py", "requirements", str(LOCK), "--output-reproducible", "--of", "JSON", "-o", str(target)
    )
    if answer.returncode:
        print(answer.stderr, file=sys.stderr)
        return 1
    print(f"{target}: {len(json.loads(target.read_text(encoding='utf-8'))['components'])} components")
    return 0


def audit() -> int:
    answer = tool(
        PIP_AUDIT, "pip-audit", "-r", str(LOCK), "--require-hashes", "--disable-pip", "--progress-spinner", "off", "-f",
        "json",
    )  # fmt: skip
    try:
        told = json.loads(answer.stdout)["dependencies"]
    except (ValueError, KeyError):
        print(f"skipped: no service that knows vulnerabilities answers ({answer.stderr.strip()[-200:]})")
        return 0
    return report(told)


def report(told: Sequence[dict[str, object]]) -> int:
    """What an audit came to."""
    skipped = [one for one in told if "skip_reason" in one]
    bad = [one for one in told if one.get("vulns")]
    for one in bad:
        print(f"{one['name']} {one['version']}: {one['vulns']}")
    looked = len(told) - len(skipped)
    if not looked:
        print(f"skipped: the package index here knows no vulnerabilities; 0 of {len(told)} packages were audited")
    else:
        print(f"{looked} of {len(told)} packages audited, {len(bad)} with known vulnerabilities")
    return 1 if bad else 0


def secrets() -> int:
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    # tests have keys that open nothing; locks have hashes only
    left_out = ("tests/", "frontend/package-lock", "requirements")
    names = [name for name in files.decode().split("\0") if (ROOT / name).is_file() and not name.startswith(left_out)]
    words = [word for guess in GUESSES for word in ("--disable-plugin", guess)]
    answer = tool(DETECT_SECRETS, "detect-secrets", "scan", *words, *names)
    if answer.returncode:
        print(answer.stderr, file=sys.stderr)
        return 1
    found = [
        f"{name}:{one['line_number']}: {one['type']}"
        for name, ones in json.loads(answer.stdout)["results"].items()
        for one in ones
    ]
    ours = (name for name in names if OWN_KEYS.search((ROOT / name).read_bytes()))
    found += [f"{name}: a key of ours" for name in ours]
    print("\n".join(found) or f"{len(names)} files, no credentials")
    return 1 if found else 0


def wheel(target: Path) -> Path:
    """Builds the plugin's wheel from a copy, so that neither the checkout nor its times are part of it."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        left_out = shutil.ignore_patterns("__pycache__", "*.egg-info", "build")
        for part in ("scheduling", "deploy/vllm-plugin"):
            shutil.copytree(ROOT / part, tree / part, ignore=left_out)
        constraint = tree / "build.txt"
        constraint.write_text(f"{SETUPTOOLS}\n", encoding="utf-8")
        answer = subprocess.run(
            [UV, "build", "--wheel", "--build-constraint", constraint, "-o", target, tree / "deploy/vllm-plugin"],
            capture_output=True, text=True, timeout=600, env=os.environ | {"SOURCE_DATE_EPOCH": EPOCH},
        )  # fmt: skip
    if answer.returncode:
        if any(sign in answer.stderr for sign in NOT_HERE):
            raise Unreachable("setuptools cannot be fetched here")
        raise RuntimeError(answer.stderr)
    return next(target.glob("*.whl"))


def main(words: Sequence[str]) -> int:
    try:
        match words:
            case ["sbom", target]:
                return sbom(Path(target))
            case ["audit"]:
                return audit()
            case ["secrets"]:
                return secrets()
            case ["wheel", target]:
                print(wheel(Path(target)))
                return 0
    except Unreachable as error:
        print(f"skipped: {error}")
        return 0
    print(__doc__, file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
