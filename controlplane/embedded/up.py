"""Everything on one machine under one supervisor in the foreground: ``make up``.

Starts Redis, engines, the database's tables and demo objects, the web server, the worker, its standby and the demo
load; starts again what dies; ends all of it, in order, at Ctrl-C or SIGTERM. Should the supervisor itself be killed,
the kernel takes its children along (Linux).
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Any

from controlplane import env_loading
from controlplane.embedded import engines, replicas, valkey
from controlplane.embedded.child import Child, die_with_parent
from controlplane.embedded.gate import LATE, STANDBY, WEB, WORKER
from controlplane.embedded.home import CannotStart, Home, require_free, write_private
from controlplane.embedded.plan import Plan
from controlplane.env import Env, SettingsError

ROOT = Path(__file__).resolve().parent.parent.parent
TICK_S = 0.1
REDIS_START_S, PREPARE_S, READY_S = 30.0, 120.0, 60.0
FALLS_BEFORE_READY = 4
BACKLOG = 2048
LEAN = {"QUARTERMASTER_BACK_OFFICE": "off"}  # half the start and 35 MB less


class Stopped(Exception):
    """A signal arrived while something was awaited."""


class Instance:
    """One running embedded instance."""

    def __init__(self, env: Env, home: Home) -> None:
        self.env = env
        self.home = home
        self.children: dict[str, Child] = {}
        self.asked_to_stop = 0
        self.base_url = f"http://{'127.0.0.1' if env.host in ('0.0.0.0', '::') else env.host}:{env.port}"  # noqa: S104
        self._prepared = home.run / "prepared"
        self._listener: socket.socket | None = None  # where there are several web processes
        self._replica_command: list[str] | None = None
        self._replica_environ: dict[str, str] = {}
        self._replicas: set[str] = set()  # of the children, those the scaling driver asked for
        self._leaving: list[Child] = []  # of those, such as were asked to stop
        self.environ = dict(
            os.environ,
            QUARTERMASTER_HOME=str(home.path),
            QUARTERMASTER_PORT=str(env.port),
            DJANGO_SETTINGS_MODULE="controlplane.settings",
            PYTHONUNBUFFERED="1",
            OMP_NUM_THREADS="1",  # small models in many processes: more threads only fight
            OPENBLAS_NUM_THREADS="1",
            CELERY_SKIP_CHECKS="1",  # migrate has just run them
        )

    # --- life

    def run(self) -> int:
        """Returns the exit code once everything has ended."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        began = time.monotonic()
        code = 0
        try:
            require_free(self.env.host, self.env.port)
            self._start_redis()
            plan = self._start_engines()
            self._start_service()  # it waits until the database is prepared
            demo = self._prepare(plan)
            self._wait_ready(READY_S + plan.patience_s)
            self._announce(demo, time.monotonic() - began)
            if self.env.demo_load:
                self._add("load", [sys.executable, "-m", "controlplane.embedded.load"], stop_s=5)
            while not self.asked_to_stop:
                self._follow_replicas()
                self._look_after()
                time.sleep(TICK_S)
        except Stopped:
            pass
        except CannotStart as error:
            say(str(error))
            code = 1
        except OSError as error:  # of what is written at a start, such as a full disk
            say(f"{self.home.path} cannot be used: {error}")
            code = 1
        finally:
            self._stop_all()
        return code

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.asked_to_stop += 1

    # --- parts, in the order they start

    def _start_redis(self) -> None:
        if self.env.redis_url:
            say("using the Redis of QUARTERMASTER_REDIS_URL")
            return
        unix_socket = self.home.redis_socket()
        url = f"unix://{unix_socket}?db=0"
        self.environ["QUARTERMASTER_REDIS_URL"] = url
        command = valkey.command(self.home.path / "redis", unix_socket)
        self._add("redis", command, stop_s=10, environ=valkey.ENVIRON)
        self._await(lambda: valkey.answers(unix_socket), REDIS_START_S, "Redis does not answer", watched="redis")
        (self.home.run / "redis-url").write_text(url)
        (self.home.run / "redis-url").chmod(0o600)

    def _start_engines(self) -> Plan:
        plan = engines.plan(self.env, self.home, say)
        for name, command in plan.commands.items():
            self._add(name, command, stop_s=10, environ=plan.environ)
        self._replica_command = replicas.template(self.env.replica_command, plan)
        if self._replica_command is not None:
            (self.home.run / replicas.SUPPORT).touch()
            self._replica_environ = plan.environ
        return plan

    def _follow_replicas(self) -> None:
        """Starts engines that the scaling driver asked for, ends those it no longer names."""
        if self._replica_command is None:
            return
        wanted = replicas.wanted(self.home.path, self._replica_command)
        for name, command in wanted.items():
            if name not in self.children and all(child.name != name for child in self._leaving):
                self._replicas.add(name)
                self._add(name, command, stop_s=10, environ=self._replica_environ)
        for name in [name for name in self._replicas if name not in wanted]:
            self._replicas.discard(name)
            child = self.children.pop(name)
            child.ask_to_stop()
            child.stop_by_s = time.monotonic() + child.stop_s
            self._leaving.append(child)
        for child in [c for c in self._leaving if not c.running or time.monotonic() > c.stop_by_s]:
            child.wait_stopped(time.monotonic())
            self._leaving.remove(child)

    def _prepare(self, plan: Plan) -> dict[str, Any]:
        """Tables, demo objects and ``demo.json``, by a short process that leaves no memory behind."""
        say("preparing the database")
        log, paper = self.home.logs / "prepare.log", self.home.run / "engines.json"
        write_private(paper, asdict(plan))
        with log.open("wb") as output, paper.open("rb") as given:
            process = subprocess.Popen(
                [sys.executable, "-m", "controlplane.embedded.prepare", self.base_url],
                stdin=given,
                stdout=output,
                stderr=output,
                env=self.environ | LEAN,
                cwd=ROOT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        try:
            # A real engine may load for minutes before it can say which model it serves.
            self._await(lambda: process.poll() is not None, PREPARE_S + plan.patience_s, "Preparing takes too long")
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            lines = log.read_text(errors="replace").splitlines()
            raise CannotStart("\n  ".join(["The instance could not be prepared:", *lines[-12:], f"(all of it: {log})"]))
        self._prepared.touch()
        return dict(json.loads((self.home.path / "demo.json").read_text()))

    def _start_service(self) -> None:
        self._prepared.unlink(missing_ok=True)
        gate = [sys.executable, "-m", "controlplane.embedded.gate", str(self._prepared)]
        shared = [str(self._listen())] if self.env.web_processes > 1 else []
        for number in range(self.env.web_processes):
            name = f"web-{number}" if number else "web"
            self._add(
                name,
                [*gate, WEB, "controlplane.web.serve", *shared],
                stop_s=self.env.drain_s + 6,
                stop_signal=signal.SIGINT,  # all of it ends: no time for clients to go elsewhere
                inherits=[int(fd) for fd in shared],
            )
        pool, imports = "prefork", WORKER
        if sys.platform == "linux" and not os.access("/dev/shm", os.W_OK):  # noqa: S108 - where semaphores live
            say("no shared memory can be made here, so the worker uses threads")
            pool, imports = "threads", f"{WORKER},{LATE}"
        self._add(
            "worker",
            [
                *(*gate, imports, "celery", "--app", "controlplane.celery", "--quiet", "worker"),
                *("--pool", pool, "--concurrency", "1", "--loglevel", self.env.log_level),
                *("--hostname", f"worker-{self.env.port}@%h"),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            stop_s=35,
            environ=LEAN,
        )
        self._add("standby", [*gate, STANDBY, "controlplane.standby"], stop_s=15, environ=LEAN)

    def _announce(self, demo: dict[str, Any], took_s: float) -> None:
        admin, key = demo["admin"], demo["keys"]["standard"]
        body = json.dumps({"model": demo["model"], "messages": [{"role": "user", "content": "Hello!"}]})
        say(f"ready after {took_s:.1f} s\n")
        show(f"  console  {self.base_url}/")
        show(f"  admin    {admin['url']}   user {admin['username']}, password {admin['password']}")
        show(f"  API      {self.base_url}/v1   key {key}")
        show(f"  metrics  {self.base_url}/metrics")
        show(f"  logs     {self.home.logs}/   keys of all tiers: {self.home.path / 'demo.json'}\n")
        show(f"  curl {self.base_url}/v1/chat/completions -H 'Authorization: Bearer {key}' \\")
        show(f"    -H 'Content-Type: application/json' -d '{body}'\n")
        show("  Ctrl-C ends all of it." + (" DEMO_LOAD=off starts it without demo load." * self.env.demo_load) + "\n")

    def _listen(self) -> int:
        """One listening socket for all web processes: what waits in it is lost with none of them."""
        family = socket.AF_INET6 if ":" in self.env.host else socket.AF_INET
        self._listener = socket.create_server((self.env.host, self.env.port), family=family, backlog=BACKLOG)
        return self._listener.fileno()

    # --- supervision

    def _add(
        self,
        name: str,
        command: list[str],
        *,
        stop_s: float,
        environ: dict[str, str] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        inherits: Sequence[int] = (),
    ) -> None:
        child = Child(
            name,
            command,
            logs=self.home.logs,
            run=self.home.run,
            environ=self.environ | (environ or {}),
            cwd=ROOT,
            stop_s=stop_s,
            stop_signal=stop_signal,
            inherits=inherits,
        )
        self.children[name] = child
        if trouble := child.start():
            say(trouble)

    def _look_after(self) -> None:
        """Says which child fell, and starts it again when its pause is over."""
        for child in self.children.values():
            child.rotate()
            if child.process is None:
                if time.monotonic() >= child.retry_s and (trouble := child.start()):
                    say(trouble)
                continue
            fell = child.fell()
            if fell:
                say(fell)
                for line in child.tail():
                    show(f"    {line}")

    def _await(self, done: Callable[[], bool], limit_s: float, failure: str, watched: str = "") -> None:
        deadline = time.monotonic() + limit_s
        while not done():
            if self.asked_to_stop:
                raise Stopped
            self._look_after()
            fallen = [c for c in self.children.values() if c.falls >= FALLS_BEFORE_READY]
            if fallen:
                raise CannotStart(f"{fallen[0].name} does not stay up. Its log: {fallen[0].log}")
            if time.monotonic() > deadline:
                tail = self.children[watched].tail() if watched else []
                raise CannotStart("\n  ".join([f"{failure} (after {limit_s:.0f} s).", *tail]))
            time.sleep(TICK_S / 2)

    def _wait_ready(self, limit_s: float) -> None:
        report: dict[str, Any] = {}
        next_word = time.monotonic() + 10

        def ready() -> bool:
            nonlocal next_word
            ok, answer = readiness(self.base_url, self.env.metrics_token)
            report.update(answer)
            if not ok and time.monotonic() > next_word:
                next_word += 10
                say(f"still starting: {'; '.join(answer.get('waiting_for', [])) or 'the web server does not answer'}")
            return ok

        try:
            self._await(ready, limit_s, "Not ready", watched="web")
        except CannotStart as error:
            raise CannotStart(f"{error}\n  waiting for: {'; '.join(report.get('waiting_for', [])) or '-'}") from None

    def _stop_all(self) -> None:
        """Ends the processes in order: those that send requests, those that serve them, those that store."""
        if not self.children:
            return
        say("ending" + (" (again Ctrl-C ends it at once)" if "web" in self.children else ""))
        if self._listener is not None:
            self._listener.close()
        requests_before = self.asked_to_stop
        webs = [n for n in self.children if n.startswith("web")]
        deciders = ["worker", "standby"]
        engines_ = [n for n in self.children if n not in ("load", *webs, *deciders, "redis")]
        order = [["load"], webs, deciders, engines_, ["redis"]]
        for child in self._leaving:
            child.wait_stopped(child.stop_by_s)
        for names in order:
            group = [self.children[n] for n in names if n in self.children]
            for child in group:
                child.ask_to_stop()
            for child in group:
                deadline = time.monotonic() + child.stop_s
                while child.running and time.monotonic() < deadline and self.asked_to_stop <= max(requests_before, 1):
                    time.sleep(TICK_S / 4)
                if not child.wait_stopped(time.monotonic()):
                    say(f"{child.name} did not end in time and was killed")
        say("all ended")


DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # HTTP_PROXY leads elsewhere


def readiness(base_url: str, metrics_token: str = "") -> tuple[bool, dict[str, Any]]:
    """The status of ``/readyz`` and its body; empty where it does not answer."""
    headers = {"Authorization": f"Bearer {metrics_token}"} if metrics_token else {}
    request = urllib.request.Request(f"{base_url}/readyz", headers=headers)  # noqa: S310 - our own address
    try:
        with DIRECT.open(request, timeout=2) as answer:
            return True, dict(json.load(answer))
    except urllib.error.HTTPError as error:
        with contextlib.suppress(ValueError):
            return False, dict(json.load(error))
    except (OSError, ValueError):
        pass
    return False, {}


def say(line: str) -> None:
    show(f"quartermaster: {line}")


def show(line: str) -> None:
    with contextlib.suppress(OSError):  # the terminal may be gone; ending in order matters more
        print(line, flush=True)


def main(arguments: Sequence[str] = ()) -> int:
    if "--with-parent" in arguments:  # should make be killed, nobody could end this instance with Ctrl-C any more
        die_with_parent(signal.SIGTERM)
    try:
        env = env_loading.load()
    except SettingsError as error:
        show(str(error))
        return 2
    for name in env_loading.unknown(os.environ):
        say(f"{name} is not a setting (docs/reference/settings.md) and is ignored")
    home = Home(env.home)
    try:
        home.acquire()
    except CannotStart as error:
        say(str(error))
        return 1
    try:
        return Instance(env, home).run()
    finally:
        home.release()
