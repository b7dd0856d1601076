"""The operator's process ends when it is told to, whatever its database does."""

from __future__ import annotations

import subprocess
import sys

import pytest

LIMIT_S = 30  # generous: other tests may share the machine

PROGRAM = """
import asyncio, time
import django; django.setup()
from controlplane.management.commands.operator import until_stopped

async def serving():
    asyncio.get_running_loop().run_in_executor(None, time.sleep, 120)  # a thread that waits for the database
    await asyncio.sleep(0)
    {end}

asyncio.run(until_stopped(serving()))
"""


@pytest.mark.parametrize(("end", "code"), [("return", 0), ("raise ValueError('a task of kopf failed')", 1)])
def test_the_operator_ends_although_a_thread_waits_for_the_database(end: str, code: int) -> None:
    program = PROGRAM.format(end=end)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=LIMIT_S, check=False)
    assert ended.returncode == code
    assert (b"ValueError: a task of kopf failed" in ended.stderr) == (code == 1)
