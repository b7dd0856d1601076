"""A trace that somebody brings, made into a recording: ``python -m scheduling.simulator.import_trace BYTES REQUESTS``.

The trace comes on standard input. What goes out is a line of JSON, ``[requests, span_s]``, and the recording, gzipped.
It is a process of its own with bounds of its own, because a gz says nothing about what it unpacks to.
"""

from __future__ import annotations

import gzip
import io
import json
import resource
import sys
from pathlib import Path
from tempfile import NamedTemporaryFile

from scheduling.simulator.contracts import SHIPPED
from scheduling.simulator.kernel import rng
from scheduling.simulator.recording import Recorded, Recording, write_recording
from scheduling.simulator.trace import TraceError, read_tiers, read_trace
from scheduling.simulator.workload import pick_tier

REFUSED = 3  # exit status: standard error says what is wrong with the trace
MEMORY = 1024 * 1024 * 1024  # bytes of address space
CPU_S = 60


def recorded(path: Path, most_bytes: int, most: int) -> Recording:
    """The first ``most`` requests of a trace in any format that ``lab compare`` reads, of at most ``most_bytes``
    unpacked. Requests of one without tiers draw one of the shipped ones. Raises TraceError and OSError."""
    tiers, rows = read_tiers(path, most_bytes=most_bytes), read_trace(path, limit=most, most_bytes=most_bytes)
    draw = rng(1, "tiers")
    kept = []
    for row in rows:
        tier = row.tier or pick_tier(draw, SHIPPED).name
        kept.append(Recorded(row.arrival_s, row.input_tokens, row.output_tokens, row.tenant or tier, tier, wait_s=0.0))
    return Recording("", tiers or SHIPPED, tuple(kept))


def packed(recording: Recording) -> tuple[bytes, int]:
    """A recording as it is kept, and how many of its requests ran."""
    text = io.StringIO()
    write_recording(recording, text)
    return gzip.compress(text.getvalue().encode(), mtime=0), sum(row.ran for row in recording.rows)


def main(most_bytes: int, most: int) -> int:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    with NamedTemporaryFile(suffix=".trace") as file:
        file.write(sys.stdin.buffer.read())
        file.flush()
        try:
            recording = recorded(Path(file.name), most_bytes, most)
        except (TraceError, OSError) as problem:
            print(str(problem).replace(file.name, "the trace"), file=sys.stderr)
            return REFUSED
    data, requests = packed(recording)
    sys.stdout.buffer.write(json.dumps([requests, recording.span_s]).encode() + b"\n" + data)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))
