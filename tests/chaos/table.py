"""The table of faults: ``python -m tests.chaos.table [--only ROW] [--write PAGE]`` (``make faults``).

Each row is a fault that was once answered badly, the tests that bring it about, and what they measured just now: their
``figure``. A row whose test failed says so. Printed as Markdown; ``--write`` puts rows into the page between its two
marks and leaves those that were not measured as they are.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN, END = "<!-- faults: python -m tests.chaos.table -->", "<!-- end of faults -->"
HEAD = ("row", "fault", "before", "asked for", "now", "measured", "by")
LIMIT_S = 1800.0


@dataclass(frozen=True, slots=True)
class Row:
    """``tests``: what pytest is given; or ``seed``, for a minute of faults in random order."""

    key: str  # for ``--only``
    fault: str
    before: str
    bar: str
    tests: tuple[str, ...] = ()
    seed: int = 0
    settings: tuple[tuple[str, str], ...] = ()  # of the environment

    @property
    def by(self) -> str:
        """What brings it about, short."""
        if self.seed:
            return f"`make chaos SEED={self.seed} MINUTES=1`"
        return ", ".join(
            f"`{name}`" for name in dict.fromkeys(Path(test.partition("::")[0]).name for test in self.tests)
        )


SICK = "tests/integration/test_sick_replica.py::test_what_one_replica_fails_the_others_serve"
LOAD = "tests/integration/test_overload.py"
SEEDS = (1, 2, 3, 4, 5, 461, 8128)

ROWS = (
    Row(
        "totals",
        "shared state whose totals are wrong: seven ways, 99 running with no lease among them",
        "`run` 16 with 0 leases: nothing is granted for ever, `/readyz` 200",
        "heals by itself",
        ("tests/integration/test_totals_heal.py::test_a_wrong_total_is_rewritten_and_grants_go_on",),
    ),
    Row(
        "formats",
        "16 leases in the format of an older version, or of none that is known",
        "the sweep fails for 29 s, the slots are lost for ever",
        "each ends with a row",
        (
            "tests/integration/test_state_formats.py::"
            "test_sixteen_leases_of_another_version_end_with_a_record_each_and_grants_go_on",
        ),
    ),
    *(
        Row(
            f"replica-{kind}",
            f"one of three replicas {what} at once, 300 requests at 16 % of the load",
            "73 to 79 % fail, never ejected",
            "2 % fail at most",
            (f"{SICK}[1-{kind}]",),
        )
        for kind, what in (
            ("401", "answers 401"),
            ("404", "answers 404"),
            ("429", "answers 429"),
            ("503", "answers 503"),
            ("302", "redirects"),
            ("html", "answers 200 with HTML"),
        )
    ),
    Row(
        "replicas",
        "two of three do: 401, 404, 429, 503, a redirect, HTML, a reset, a late 500",
        "never ejected",
        "2 % fail at most",
        tuple(f"{SICK}[2-{kind}]" for kind in ("401", "404", "429", "503", "302", "html", "reset", "slow 500")),
    ),
    Row(
        "metrics",
        "`/metrics` without vLLM's lines, hanging, empty, missing, garbage, late by 3 s",
        "healthy engines flap each 3 s: 657 x 504, 452 x 503",
        "none fails, none ejected",
        ("tests/integration/test_sick_replica.py::test_a_broken_metrics_page_stops_nothing",),
    ),
    Row(
        "leader",
        "the leader, or leader and standby, get SIGKILL or SIGTERM in overload, 16 slots",
        "5.6 to 6.5 s until slots fill after SIGKILL, 9.6 s after SIGTERM, 28 s when busy",
        "another leads within 2 s; no idle slots",
        ("tests/chaos/test_a_leader_leaves.py",),
    ),
    Row(
        "web",
        "one of two web processes gets SIGTERM under load; then each in turn",
        "34 to 112 x 503",
        "no request fails",
        ("tests/integration/test_web_process_leaves.py",),
    ),
    Row(
        "clocks",
        "Redis' clock 40 s ahead of a gateway's, or behind it",
        "premium: 38 done and 76 timed out instead of 233 done",
        "all served",
        ("tests/integration/test_clocks.py::test_who_waits_is_served_however_far_clocks_are_off",),
    ),
    Row(
        "clock-set",
        "Redis' clock set by -600, +40, +3,600 s while requests run and wait",
        "a step back stops the sweep for as long",
        "all served, the dead swept",
        ("tests/integration/test_clocks.py::test_when_redis_clock_is_set_nobody_is_ended_and_the_dead_still_are",),
    ),
    Row(
        "figures",
        "an engine's usage of 10^23, 2^63, negative, text, missing",
        "a completed stream without a row, `roll_up` dead for all tenants",
        "our own count, one row each",
        ("tests/integration/test_broken_engines.py::test_absurd_usage_reaches_neither_ledger_nor_hours_nor_quotas",),
    ),
    Row(
        "flush",
        "FLUSHALL three times under 12 clients",
        "21 of 15,337 ledger rows lost, buckets full again",
        "no row lost",
        ("tests/chaos/test_redis_loses_its_data.py",),
    ),
    Row(
        "redis",
        "Redis killed, frozen, or 2 s late for a minute under 20 requests/s and 20 streams",
        "503 after 333 to 554 ms (p99)",
        "250 ms (p99), served again within 5 s",
        ("tests/integration/test_redis_outages.py::test_a_minute_without_redis_under_load",),
    ),
    Row(
        "postgresql",
        "a frozen PostgreSQL, for moments and for ten minutes",
        "a page hangs for more than 20 s",
        "503 within the limit, `/v1` goes on",
        (
            "tests/integration/test_frozen_postgresql.py::"
            "test_pages_answer_503_while_postgresql_is_frozen_and_inference_goes_on",
        ),
    ),
    Row(
        "upgrade",
        "SIGKILL of everything with 16 in flight, the next version starts on the state; and back",
        "a rollback drops every ledger entry without a word",
        "each has one row, nothing stays",
        ("tests/chaos/test_upgrade.py",),
    ),
    Row(
        "overload",
        "1, 2, 5 and 10 times the load, by one key whose 400 clients come back at once",
        "goodput 26 -> 22/s",
        "95 % of 1x",
        (f"{LOAD}::test_goodput_holds_at_ten_times_the_load",),
        settings=(("OVERLOAD_ROUNDS", "5"),),
    ),
    Row(
        "storm-pages",
        "the same storm: `/healthz`, `/readyz` and a page",
        "`/healthz` p99 2.4 s",
        "p99 200 ms",
        (f"{LOAD}::test_health_login_and_the_leader_go_on_beside_a_key_that_storms",),
    ),
    Row(
        "storm-neighbour",
        "the same storm: another tenant's requests",
        "premium 8.7 -> 5.7/s",
        "as beside 40 clients, who fill the replica as well",
        (f"{LOAD}::test_a_calm_tenant_is_served_beside_a_key_that_storms",),
        settings=(("OVERLOAD_ROUNDS", "3"),),
    ),
    Row(
        "refusals",
        "10 times the load for 3 minutes, on 16 keys that do not storm: memory and refusals",
        "not measured",
        "memory +10 % at most, p99 of a refusal 50 ms",
        (f"{LOAD}::test_at_ten_times_the_load_memory_stays_and_nobody_waits_for_a_refusal",),
        settings=(("OVERLOAD_MINUTES", "3"),),
    ),
    Row(
        "readers",
        "clients that do not read their streams",
        "990 KB each",
        "200 KB each",
        ("tests/integration/test_gateway_slept.py::test_readers_that_do_not_read_are_held_in_little_memory",),
    ),
    *(
        Row(
            f"seed-{seed}",
            f"faults in random order for a minute, seed {seed}",
            "no such runner",
            "no law broken",
            seed=seed,
        )
        for seed in SEEDS
    ),
)


def figures(report: str) -> tuple[list[str], list[str]]:
    """Of pytest's report (JUnit): what tests measured, and the names of those that did not pass."""
    measured, failed = [], []
    for case in ET.fromstring(report).iter("testcase"):
        measured += [p.get("value", "") for p in case.iter("property") if p.get("name") == "figure"]
        if any(case.find(kind) is not None for kind in ("failure", "error", "skipped")):
            failed.append(case.get("name", "?"))
    return measured, failed


def of_tests(row: Row, folder: Path) -> str:
    """Runs a row's tests; what goes into its cell."""
    report = folder / "report.xml"
    report.unlink(missing_ok=True)
    # without xdist, in the order in which they stand, and with a form of report that has properties
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-m", "", "-o", "junit_family=xunit1"]
    command += ["--timeout=1200"]  # of a test that has no limit of its own: other work may share the machine
    done = subprocess.run(
        [*command, f"--junitxml={report}", *row.tests], cwd=ROOT, env=os.environ | dict(row.settings),
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if not report.exists():
        return f"**did not run**: {done.stdout[-300:]}"
    measured, failed = figures(report.read_text())
    if failed:
        print(done.stdout[-4000:], file=sys.stderr)
    return "; ".join([*measured, *(f"**{name} did not pass**" for name in failed)]) or "**nothing measured**"


def of_run(output: str) -> str:
    """What the runner of random faults said in the end."""
    counts = re.search(r"^seed \d+: (.*?), history", output, re.MULTILINE)
    took = sorted(float(s) for s in re.findall(r"^ *[\d.]+s  .*s  ([\d.]+) s$", output, re.MULTILINE))
    broken = re.findall(r"^BROKEN: (.*)$", output, re.MULTILINE)
    if counts is None:
        return f"**did not run**: {output[-300:]}"
    laws = f"**{len(broken)} laws broken: {broken[0]}**" if broken else "no law broken"
    back = f"served again after {took[0]:.1f} to {took[-1]:.1f} s (median {took[len(took) // 2]:.1f})" if took else "-"
    return f"{counts[1]}; {laws}; {back}"


def measure(row: Row, folder: Path) -> dict[str, str]:
    """A row's cells."""
    before = os.getloadavg()[0]
    if row.seed:
        command = [sys.executable, "-m", "tests.chaos.run", "--seed", str(row.seed), "--minutes", "1"]
        ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        now = of_run(ran.stdout)
        if ran.returncode:
            print(ran.stdout[-2000:], ran.stderr[-4000:], file=sys.stderr)
    else:
        now = of_tests(row, folder)
    when = f"{time.strftime('%Y-%m-%d %H:%M')}, load {before:.0f} to {os.getloadavg()[0]:.0f}"
    if os.sched_getscheduler(0) in (os.SCHED_FIFO, os.SCHED_RR):
        when += ", real-time priority"
    cells = (row.key, row.fault, row.before, row.bar, now, when, row.by)
    return dict(zip(HEAD, (cell.replace("|", "\\|").replace("\n", " ") for cell in cells), strict=True))


def line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def merged(page: str, rows: list[dict[str, str]]) -> str:
    """The page with these rows in its table; rows of it that are none of ours any more are dropped."""
    before, mark, rest = page.partition(BEGIN)
    table, end, after = rest.partition(END)
    if not (mark and end):
        raise SystemExit(f"the page has no {BEGIN} and {END}: put them where the table shall stand")
    lines = {text.strip("| ").split(" | ")[0]: text for text in table.splitlines() if text.startswith("| ")}
    lines |= {row[HEAD[0]]: line(list(row.values())) for row in rows}
    kept = [lines[row.key] for row in ROWS if row.key in lines]
    head = [line(list(HEAD)), "|" + "---|" * len(HEAD)]
    return "\n".join([before + mark, "", *head, *kept, "", end + after])


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", action="append", default=[], help="rows whose name begins so")
    parser.add_argument("--write", type=Path, help="the page whose table takes the rows")
    options = parser.parse_args()
    chosen = [row for row in ROWS if not options.only or row.key.startswith(tuple(options.only))]
    print(line(list(HEAD)), "|" + "---|" * len(HEAD), sep="\n", flush=True)
    bad = 0
    with tempfile.TemporaryDirectory(prefix="qm-faults-") as folder:
        for row in chosen:
            cells = measure(row, Path(folder))
            bad += "**" in cells["now"]
            print(line(list(cells.values())), flush=True)
            if options.write:
                options.write.write_text(merged(options.write.read_text(), [cells]))
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
