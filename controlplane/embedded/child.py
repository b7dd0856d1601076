"""One process under the supervisor: started in a session of its own, watched, restarted, ended, never left behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

FIRST_PAUSE_S, MAX_PAUSE_S = 0.3, 10.0
STEADY_S = 30.0  # up for so long, its earlier falls are forgotten
MAX_LOG_BYTES = 20 * 1024 * 1024  # bytes, and as many of the lines before: two files for each child
PR_SET_PDEATHSIG = 1
MAX_NICE = 19
AUTOGROUP = Path("/proc/self/autogroup")
NICE_TRIES, NICE_PAUSE_S = 10, 0.11

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Asks the kernel to send this process a signal when its parent dies, however it does (Linux only)."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, number)


def give_way(nice: int) -> None:
    """This process steps aside for all others of the machine, and not only for those of its session.

    Linux groups processes by session (``sched_autogroup``, on in most distributions), shares processors among the
    groups, and compares ``nice`` within a group alone: a worker's task of nice 10 took as much as the web process of
    another session. So it gets a session of its own, which has the same nice. Where the kernel does not group, this is
    ``os.nice``. In a container the group is the container's; there, its share of processors is to be set.
    """
    nice = min(MAX_NICE, nice)
    os.nice(nice)
    if nice == 0 or not AUTOGROUP.exists():
        return
    with contextlib.suppress(PermissionError):  # it leads a group of processes: it has its session by then
        os.setsid()
    for _ in range(NICE_TRIES):
        try:
            AUTOGROUP.write_text(str(nice), encoding="ascii")
        except BlockingIOError:  # without root, the whole machine may set one in 0.1 s
            time.sleep(NICE_PAUSE_S)
        except OSError:
            return
        else:
            return


class Child:
    """A command that should run.

    ``ready`` is asked after a start until it is true; ``kill_group`` is what remains to be ended after the process
    itself has ended (its own children).
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        logs: Path,
        run: Path,
        environ: Mapping[str, str],
        cwd: Path,
        stop_s: float,
        ready: Callable[[], bool] | None = None,
        stop_signal: signal.Signals = signal.SIGTERM,
        inherits: Sequence[int] = (),
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = logs / f"{name}.log"
        self.pid_file = run / f"{name}.pid"
        self.environ = dict(environ)
        self.cwd = cwd
        self.stop_s = stop_s
        self.ready = ready
        self.stop_signal = stop_signal
        self.inherits = inherits  # file descriptors
        self.process: subprocess.Popen[bytes] | None = None
        self.falls = 0
        self.started_s = 0.0
        self.retry_s = 0.0
        self.stop_by_s = 0.0  # monotonic; when asked to stop for good
        self.log_start = 0  # where this life's lines begin in the log

    def start(self) -> str | None:
        """One line where the machine has no process, memory or disk for it now; it is then due again at ``retry_s``."""
        try:
            self._start()
        except OSError as error:
            return f"{self.name} could not be started ({error.strerror}); trying again in {self._pause():.1f} s"
        with contextlib.suppress(OSError):  # a full disk: it runs all the same
            self.pid_file.unlink(missing_ok=True)
            self.pid_file.write_text(f"{self.process.pid}\n" if self.process else "")
        return None

    def _start(self) -> None:
        self.rotate()
        parent = os.getpid()

        def in_child() -> None:
            die_with_parent()
            if os.getppid() != parent:  # it died before we could ask
                os._exit(0)

        with self.log.open("ab") as log:
            self.log_start = log.tell()
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                cwd=self.cwd,
                pass_fds=self.inherits,
                start_new_session=True,  # a Ctrl-C in the terminal reaches the supervisor alone
                preexec_fn=in_child,
            )
        self.started_s = time.monotonic()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def fell(self) -> str | None:
        """One line when it has ended by itself since the last look; its restart is then due at ``retry_s``."""
        if self.process is None or self.process.poll() is None:
            return None
        code = self.process.returncode
        self._end_group()
        self.process = None
        self.pid_file.unlink(missing_ok=True)
        if time.monotonic() - self.started_s > STEADY_S:
            self.falls = 0
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        return f"{self.name} {how}; starting it again in {self._pause():.1f} s"

    def _pause(self) -> float:
        """Longer after each fall; it is due again when it is over."""
        pause: float = min(MAX_PAUSE_S, FIRST_PAUSE_S * 2**self.falls)
        self.falls += 1
        self.retry_s = time.monotonic() + pause
        return pause

    def rotate(self) -> None:
        """Puts a full log aside while the child writes: it appends, so that its next line begins the emptied file.

        Lines written between copy and truncation are lost. Children are of all kinds (Redis, engines), so none can be
        asked to open its log anew, and a pipe to this process would end them with it.
        """
        try:
            if self.log.stat().st_size <= MAX_LOG_BYTES:
                return
            with self.log.open("rb") as full, self.log.with_suffix(".log.old").open("wb") as old:
                full.seek(-MAX_LOG_BYTES, os.SEEK_END)  # however much it wrote since the last look
                old.write(full.read(MAX_LOG_BYTES))  # not to its end, which moves
            os.truncate(self.log, 0)
            self.log_start = 0
        except OSError:  # e.g. a full disk: the children go on
            return

    def tail(self, lines: int = 12) -> list[str]:
        """The last lines this life of it wrote."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.log_start, self.log.stat().st_size - 16_384))
                return list(deque(file.read().decode(errors="replace").splitlines(), lines))
        except OSError:
            return []

    def ask_to_stop(self) -> None:
        if self.running:
            assert self.process is not None
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(self.stop_signal)

    def wait_stopped(self, deadline_s: float) -> bool:
        """Waits until it has ended, kills it at the deadline (monotonic). True when it ended by itself."""
        if self.process is None:
            return True
        by_itself = True
        try:
            self.process.wait(max(0.0, deadline_s - time.monotonic()))
        except subprocess.TimeoutExpired:
            by_itself = False
            self.process.kill()
            self.process.wait()
        self._end_group()
        self.process = None
        self.pid_file.unlink(missing_ok=True)
        return by_itself

    def _end_group(self) -> None:
        """Its children, if it left some, are in its group."""
        assert self.process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
