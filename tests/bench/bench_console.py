"""What the console costs: its size, its first paint, its frames, and what open dashboards ask of the server.

    python -m tests.bench.bench_console [size] [paint] [frames] [fleet] [dashboards] [--seconds 30] [--opens 200]

Without a name: all five. Needs the built console (``make setup``) and Chromium. How to read it:
``docs/results/benchmarks.md``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from telemetry.feed.hub import encode_history
from tests.bench.bench_gateway import cpu_s, tree
from tests.browser.conftest import CHROMIUM, FLAGS
from tests.browser.pretend import PretendPool
from tests.browser.stage import DIST, Stage
from tests.support.instance import Up

WIDE = {"width": 1440, "height": 900}
PAINTS = 7
FLEET = 200
TENANTS = 50
SETTLE_S = 10.0  # every dashboard has its history

# Of each frame its time since the last one, of each task of more than 50 ms how long it was.
WATCH = """() => {
    window.frames_ms = []; window.long_ms = [];
    new PerformanceObserver((list) => { for (const e of list.getEntries()) window.long_ms.push(e.duration); })
        .observe({type: "longtask"});
    let last = performance.now();
    const frame = (now) => { window.frames_ms.push(now - last); last = now; requestAnimationFrame(frame); };
    requestAnimationFrame(frame);
}"""
# When the overview's figures, and its first drawn chart, are there.
SEEN = """
    const seen = new MutationObserver(() => {
        const now = performance.now();
        if (!window.figures_ms && document.querySelector("[data-testid=figures]")) window.figures_ms = now;
        if (!window.charts_ms && document.querySelector(".uplot canvas")) { window.charts_ms = now; seen.disconnect(); }
    });
    seen.observe(document, {subtree: true, childList: true});
"""
PAINT = """() => ({
    first: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
    figures: window.figures_ms, charts: window.charts_ms,
    bytes: performance.getEntriesByType("resource").reduce((sum, r) => sum + r.transferSize, 0),
})"""


@contextmanager
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


def _middle(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f}-{max(values):.0f})"


def _at(values: list[float], percent: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]


# --- size


def size() -> None:
    """What a browser loads for the overview, and what each other page adds to it."""
    chunks: dict[str, Any] = json.loads((DIST / ".vite" / "manifest.json").read_text())
    entry = next(name for name, chunk in chunks.items() if chunk.get("isEntry"))

    def closure(name: str) -> set[str]:
        chunk = chunks[name]
        found = {chunk["file"], *chunk.get("css", [])}
        for other in chunk.get("imports", []):
            found |= closure(other)
        return found

    def line(name: str, files: set[str]) -> None:
        raw = sum((DIST / file).stat().st_size for file in files)
        packed = [DIST / f"{file}.gz" for file in files]
        sent = sum((p if p.exists() else p.with_suffix("")).stat().st_size for p in packed)
        print(f"{name:<28}{len(files):4d} files {raw / 1024:8.1f} KiB raw {sent / 1024:8.1f} KiB sent (gzip)")

    first = closure(entry)
    line("overview and requests", first)
    for name in sorted(chunks[entry].get("dynamicImports", [])):
        line(f"+ {Path(name).stem}", closure(name) - first)
    line("all", set().union(*(closure(name) for name in chunks)))


# --- first paint


def paint() -> None:
    """The overview of a running instance with its demo load, opened again and again: without and with a cache."""
    with tempfile.TemporaryDirectory(prefix="qm-console-") as folder, chromium() as browser:
        up = Up(Path(folder) / "home", DEMO_LOAD="on").start()
        try:
            up.wait_ready()
            login = browser.new_context(viewport=WIDE)
            log_in(login, up, "admin")
            time.sleep(30)  # something to show
            state = login.storage_state()
            login.close()
            cold, warm = [], []
            for _ in range(PAINTS):
                context = browser.new_context(viewport=WIDE, storage_state=state)
                context.add_init_script(SEEN)
                page = context.new_page()
                cold.append(painted(page, up.url))
                warm.append(painted(page, up.url))
                context.close()
        finally:
            up.stop()
    for name, found in (("cold", cold), ("warm", warm)):
        first, figures, charts = ([each[key] for each in found] for key in ("first", "figures", "charts"))
        print(
            f"{name}: first paint {_middle(first)} ms, figures {_middle(figures)} ms, charts {_middle(charts)} ms, "
            f"{statistics.median(each['bytes'] for each in found) / 1024:.0f} KiB"
        )


def painted(page: Page, url: str) -> dict[str, float]:
    page.goto(url)
    while True:  # the pages' policy forbids what wait_for_function does
        page.wait_for_timeout(200)
        found: dict[str, float] = page.evaluate(PAINT)
        if found.get("first") and found.get("charts"):
            return found


def log_in(context: BrowserContext, up: Up, who: str) -> Page:
    page = context.new_page()
    page.goto(up.url)
    page.get_by_label("User name").fill(who)
    page.get_by_label("Password").fill(up.demo()["passwords"][who])
    page.get_by_role("button", name="Log in").click()
    page.get_by_test_id("figures").wait_for()
    return page


# --- frames


def frames(seconds: int) -> None:
    """Frame times of the overview while each of its series takes a value a second; then of the same page at rest."""
    with chromium() as browser:
        for minutes in (5, 15):
            context = browser.new_context(viewport=WIDE, device_scale_factor=1)
            page = context.new_page()
            stage = Stage(page, [PretendPool(at=time.time(), tenants=TENANTS)])
            stage.history = 900
            stage.open(f"/?window={minutes}")
            page.locator(".uplot canvas").first.wait_for()
            page.wait_for_timeout(5000)
            series = page.locator("section[aria-label] ul > li").count()
            page.evaluate(WATCH)
            session = context.new_cdp_session(page)
            session.send("Performance.enable")
            for name in ("one value a second", "at rest"):
                page.evaluate("window.frames_ms.length = 0; window.long_ms.length = 0")
                before = _metrics(session)
                begin = time.monotonic()
                for second in range(seconds):
                    if name != "at rest":
                        for pool in stage.pools.values():
                            pool.at = time.time() - 1
                        stage.second()
                    page.wait_for_timeout(max(0.0, (begin + second + 1 - time.monotonic()) * 1000))
                after = _metrics(session)
                spent = {key: (after[key] - before[key]) * 1000 / seconds for key in ("ScriptDuration", "TaskDuration")}
                told: dict[str, list[float]] = page.evaluate("({frames: frames_ms, long: long_ms})")
                each, long = told["frames"][2:], told["long"]
                print(
                    f"{minutes} min, {series} series of {TENANTS} tenants, {name}: {len(each) / sum(each) * 1000:.1f} "
                    f"frames/s; frame p50 {_at(each, 50):.1f} p95 {_at(each, 95):.1f} p99 {_at(each, 99):.1f} "
                    f"max {max(each):.0f} ms; {len(long)} tasks over 50 ms (longest {max(long, default=0):.0f}); "
                    f"per second {spent['ScriptDuration']:.0f} ms of script, {spent['TaskDuration']:.0f} ms in all",
                    flush=True,
                )
            context.close()


def _metrics(session: Any) -> dict[str, float]:
    return {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}


# --- the fleet


def fleet(seconds: int) -> None:
    """The page of all pools: until every row is there, then while each pool changes once a second, then at rest; what
    the page holds and is sent. Last, what the server would send of a pool's 15 minutes."""
    with chromium() as browser:
        for count in (1, FLEET):
            context = browser.new_context(viewport=WIDE, device_scale_factor=1)
            context.add_init_script(SEEN)
            page = context.new_page()
            stage = Stage(page, [PretendPool(f"pool-{n:03d}", time.time(), n, n % 10 == 0) for n in range(count)])
            stage.history, stage.histories = 0, False
            stage.answers = {"pools": {"count": 0, "next": None, "previous": None, "results": []}, "alert-rules": []}
            sent = _counted(stage)
            began = time.monotonic()
            stage.open("/pools")
            page.locator("tbody tr").nth(count - 1).wait_for()
            there_s = time.monotonic() - began
            opened_bytes, first = sum(sent), page.evaluate(PAINT)["first"]
            page.wait_for_timeout(3000)
            page.evaluate(WATCH)
            session = context.new_cdp_session(page)
            session.send("Performance.enable")
            for name in ("each pool changes", "at rest"):
                page.evaluate("window.frames_ms.length = 0; window.long_ms.length = 0")
                sent.clear()
                before, begin = _metrics(session), time.monotonic()
                for second in range(seconds):
                    if name != "at rest":
                        for pool in stage.pools.values():
                            pool.at = time.time() - 1
                        stage.second()
                    page.wait_for_timeout(max(0.0, (begin + second + 1 - time.monotonic()) * 1000))
                took, after = time.monotonic() - begin, _metrics(session)
                told: dict[str, list[float]] = page.evaluate("({frames: frames_ms, long: long_ms})")
                each, long = told["frames"][2:], told["long"]
                spent = (after["TaskDuration"] - before["TaskDuration"]) * 1000 / took
                print(
                    f"{count} pools, {name}: frame p50 {_at(each, 50):.1f} p95 {_at(each, 95):.1f} p99 "
                    f"{_at(each, 99):.1f} max {max(each):.0f} ms; {len(long) / took:.1f} tasks over 50 ms a second "
                    f"(longest {max(long, default=0):.0f}); main thread {spent:.0f} ms a second; "
                    f"{sum(sent) / took / 1024:.0f} KiB/s",
                    flush=True,
                )
            session.send("HeapProfiler.collectGarbage")
            held = _metrics(session)
            print(
                f"{count} pools: first paint {first:.0f} ms, all rows after {there_s * 1000:.0f} ms, sent on opening "
                f"{opened_bytes / 1024:.0f} KiB; script memory {held['JSHeapUsedSize'] / 2**20:.1f} MiB, "
                f"{held['Nodes']:.0f} nodes",
                flush=True,
            )
            context.close()
    for name, idle in (("busy", False), ("idle", True)):
        pool = PretendPool(at=time.time(), idle=idle)
        points = []
        for _ in range(900):
            pool.step()
            points.append(pool.point())
        print(f"history of one {name} pool: {len(encode_history(pool.name, points, None)) / 1024:.0f} KiB")


def _counted(stage: Stage) -> list[int]:
    """The bytes of each message that is sent from now on."""
    counts: list[int] = []
    send = stage.send

    def counted(message: dict[str, Any]) -> None:
        counts.append(len(json.dumps(message, separators=(",", ":"))))
        send(message)

    stage.send = counted  # type: ignore[method-assign]
    return counts


# --- dashboards


def dashboards(seconds: int, opens: int) -> None:
    """What the processes use while nobody and while many look on. What clients of ``/v1`` notice: bench_dashboards."""
    with tempfile.TemporaryDirectory(prefix="qm-console-") as folder:
        up = Up(Path(folder) / "home", DEMO_LOAD="on", QUARTERMASTER_MAX_WEBSOCKETS_PER_USER="1000").start()
        try:
            up.wait_ready()
            time.sleep(30)
            uvloop.run(_dashboards(up, seconds, opens))
        finally:
            up.stop()


async def _dashboards(up: Up, seconds: int, opens: int) -> None:
    cookies = {who: await session_of(up, who) for who in ("admin", "member")}
    for name, crowd in (
        ("no dashboard", []),
        (f"{opens} of admins", ["admin"] * opens),
        (f"{opens} of admins and members", ["admin", "member"] * (opens // 2)),
    ):
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            sockets = [
                await http.ws_connect(
                    up.url + "/ws/live", max_msg_size=0, headers={"Cookie": cookies[who], "Origin": up.url}
                )
                for who in crowd
            ]
            counts = [0, 0]  # messages, bytes
            readers = [asyncio.create_task(_read(socket, counts)) for socket in sockets]
            await asyncio.sleep(SETTLE_S)
            pids = {part: tree(up.pid(part)) for part in ("web", "worker", "redis")}
            before, began = {part: cpu_s(found) for part, found in pids.items()}, time.monotonic()
            counts[:] = [0, 0]
            await asyncio.sleep(seconds)
            over = time.monotonic() - began
            used = {part: (cpu_s(found) - before[part]) / over for part, found in pids.items()}
            alive = sum(not reader.done() for reader in readers)
            print(
                f"{name} ({alive} open): web {used['web'] * 100:.1f} % of a core, worker {used['worker'] * 100:.1f} %, "
                f"redis {used['redis'] * 100:.1f} %; {counts[0] / over:.0f} messages/s, {counts[1] / over / 1024:.0f} "
                "KiB/s",
                flush=True,
            )
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*(socket.close() for socket in sockets))


async def session_of(up: Up, who: str) -> str:
    """A cookie header of somebody who logged in."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True)) as http:
        async with http.get(up.url + "/login") as page:
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', await page.text())
        assert token is not None
        form = {"username": who, "password": up.demo()["passwords"][who], "csrfmiddlewaretoken": token.group(1)}
        async with http.post(up.url + "/login", data=form, headers={"Referer": up.url}) as answer:
            assert answer.status == 200
            assert "/login" not in str(answer.url), "the password was refused"
        return "; ".join(f"{cookie.key}={cookie.value}" for cookie in http.cookie_jar)


async def _read(socket: aiohttp.ClientWebSocketResponse, counts: list[int]) -> None:
    async for message in socket:
        counts[0] += 1
        counts[1] += len(message.data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="*", help="size, paint, frames, fleet, dashboards")
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--opens", type=int, default=200)
    chosen = parser.parse_args()
    parts = {
        "size": size,
        "paint": paint,
        "frames": lambda: frames(chosen.seconds),
        "fleet": lambda: fleet(chosen.seconds),
        "dashboards": lambda: dashboards(chosen.seconds, chosen.opens),
    }
    for name in chosen.what or parts:
        print(f"--- {name}", flush=True)
        parts[name]()


if __name__ == "__main__":
    main()
