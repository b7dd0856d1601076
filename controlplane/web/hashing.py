"""Where passwords are hashed: in a web process one at a time, by a helper that gives way where there are many.

A password's hash is slow by intent, a third of a second of a processor or more. OpenSSL gives up the interpreter's lock
meanwhile but not the core: 200 at once made a one-token request of ``/v1`` wait 0.8 s instead of 0.02 s. So whatever
hashes in a web process (login page, back office, HTTP Basic, a changed password, the dummy hash for a name that nobody
has) waits for its turn, in a short line and for a bounded time, and is told to come again where that was not enough.
Strangers from many addresses can fill that line for good, so who has signed in from the same address before goes ahead.

The helper is a process and not a thread: one with a lower priority that holds the interpreter's lock would keep the
gateway waiting for as long as others keep it from the processor. It gives way to everything else only beyond an
allowance, which people who sign in do not use up and guesses do: on a machine with thirteen others that wanted its two
processors, a low priority made one sign-in last a quarter of a minute. A process cannot take back its priority, so
there are two of them, of which the second is started once it is needed.
"""

from __future__ import annotations

import base64
import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from contextvars import ContextVar
from typing import IO

from django.contrib.auth.hashers import PBKDF2PasswordHasher

NICE = 10  # as the worker's tasks: the gateway goes first, and it still gets a tenth of a core
QUICK = 3  # hashes at once that need not give way, of strangers; as many of those who go ahead
QUICK_EVERY_S = 10.0  # and one more in this time: a thirtieth of a core
LINE = 4  # who may wait behind the one that is hashed
LINE_AHEAD = 2  # of those who go ahead, so many more
WAIT_S = 5.0  # for one's turn
HASH_S = 20.0  # for one hash: many times what a busy machine needs at this priority
RETRY_S = 5

# It has only the standard library to load and ends with its parent, whose end of the pipe closes.
_HELPER = """
import hashlib, os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
if {nice}:
    os.nice({nice})
    try:
        with open("/proc/self/autogroup", "w") as group:  # nice alone compares within a session
            group.write("{nice}")
    except OSError:
        pass
asked, answers = sys.stdin.buffer, sys.stdout.buffer
while True:
    head = asked.readline().split()
    if len(head) != 4:
        break
    digest, iterations, password, salt = head[0].decode(), int(head[1]), int(head[2]), int(head[3])
    password, salt = asked.read(password), asked.read(salt)
    answers.write(hashlib.pbkdf2_hmac(digest, password, salt, iterations).hex().encode() + b"\\n")
    answers.flush()
"""


ahead: ContextVar[bool] = ContextVar("ahead", default=False)  # whether who asks goes ahead of strangers


class HashingBusy(Exception):
    """No hash was made: others are before this one. Trying again later may help."""


class _Allowance:
    """How many hashes need not give way: a few at once, and then one from time to time."""

    def __init__(self) -> None:
        self._left, self._at_s = float(QUICK), time.monotonic()

    def take(self) -> bool:
        now_s = time.monotonic()
        self._left = min(QUICK, self._left + (now_s - self._at_s) / QUICK_EVERY_S)
        self._at_s = now_s
        if self._left < 1:
            return False
        self._left -= 1
        return True


class _Process:
    """A process that hashes. Started when the first hash is asked for, and again after it died."""

    def __init__(self, nice: int) -> None:
        self._nice = nice
        self.running: subprocess.Popen[bytes] | None = None

    def ask(self, question: bytes, within_s: float) -> bytes:
        """Raises HashingBusy where it does not answer."""
        for _ in range(2):  # it may have died since the last time
            process = self.running
            if process is None or process.poll() is not None:
                self.stop()
                process = self.running = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(question)
                process.stdin.flush()
                return bytes.fromhex(_line_within(process.stdout, within_s).decode())
            except TimeoutError:
                self.stop()  # an answer that comes late must not be taken for another's
                break
            except (OSError, EOFError):
                self.stop()
        raise HashingBusy

    def stop(self) -> None:
        process, self.running = self.running, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what it did not read any more
                        pipe.close()

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - our own text above
            [sys.executable, "-I", "-S", "-c", _HELPER.format(nice=self._nice)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # which gives way as a whole
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},  # no secrets of ours
        )


class Helper:
    """Hashes one password at a time: quickly within an allowance, and beyond it by a process that gives way."""

    def __init__(self, *, line: int = LINE, wait_s: float = WAIT_S, hash_s: float = HASH_S) -> None:
        self._line, self._wait_s, self._hash_s = line, wait_s, hash_s
        self._turn = threading.Condition()
        self._hashing = False
        self._inside = 0
        self._ahead = 0  # who wait and go ahead
        self._allowances = {first: _Allowance() for first in (False, True)}
        self._quick, self._giving_way = _Process(0), _Process(NICE)

    def pbkdf2(self, digest: str, password: bytes, salt: bytes, iterations: int) -> bytes:
        """The same as ``hashlib.pbkdf2_hmac``. Blocks; may be called from any thread.

        Raises:
            HashingBusy: the line is full, one's turn did not come in time, or the helper did not answer in time.
        """
        first = ahead.get()
        with self._turn:
            if self._inside > self._line + LINE_AHEAD * first:
                raise HashingBusy
            self._inside += 1
            self._ahead += first
            try:
                wait_s = self._hash_s if first else self._wait_s  # who goes ahead waits for the present one
                if not self._turn.wait_for(lambda: not self._hashing and (first or not self._ahead), timeout=wait_s):
                    self._inside -= 1
                    raise HashingBusy
                self._hashing = True
            finally:
                self._ahead -= first
                self._turn.notify_all()
            process = self._quick if self._allowances[first].take() else self._giving_way
        question = b"%s %d %d %d\n" % (digest.encode(), iterations, len(password), len(salt)) + password + salt
        try:
            return process.ask(question, self._hash_s)
        finally:
            with self._turn:
                self._hashing = False
                self._inside -= 1
                self._turn.notify_all()

    def stop(self) -> None:
        """Ends its processes; the next hash starts another."""
        self._quick.stop()
        self._giving_way.stop()


def _line_within(stream: IO[bytes], seconds: float) -> bytes:
    """Raises TimeoutError, or EOFError where it was not all of a line."""
    end, line = time.monotonic() + seconds, b""
    while not line.endswith(b"\n"):
        readable, _, _ = select.select([stream], [], [], max(0.0, end - time.monotonic()))
        if not readable:
            raise TimeoutError
        data = os.read(stream.fileno(), 4096)
        if not data:
            raise EOFError
        line += data
    return line


_helper: Helper | None = None


def give_way() -> None:
    """From now on this process hashes through a helper. Commands that hash once (``createsuperuser``) need none."""
    global _helper
    _helper = _helper or Helper()


def stop() -> None:
    """Ends what :func:`give_way` may have started."""
    if _helper is not None:
        _helper.stop()


class PasswordHasher(PBKDF2PasswordHasher):
    """Django's default hash, in the same format."""

    def encode(self, password: str, salt: str, iterations: int | None = None) -> str:
        if _helper is None:
            return super().encode(password, salt, iterations)
        self._check_encode_args(password, salt)  # type: ignore[attr-defined]  # Django's own, not in its stubs
        iterations = iterations or self.iterations
        digest = _helper.pbkdf2(self.digest().name, password.encode(), salt.encode(), iterations)
        return f"{self.algorithm}${iterations}${salt}${base64.b64encode(digest).decode('ascii').strip()}"
