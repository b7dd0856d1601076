"""The built console in a browser with nothing behind it: pages, API and socket are played from memory."""

from __future__ import annotations

import json
import mimetypes
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from playwright.sync_api import Page, Route, WebSocketRoute

from tests.browser.pretend import LOOP, PretendPool, ledger_rows, queue_of, story_of

DIST = Path(__file__).resolve().parents[2] / "frontend" / "dist"
ORIGIN = "http://console.test"
EMPTY_BOOKS = ("backends", "pools", "tenants", "entitlements", "keys")  # a page that asks finds none
POLICY = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src *"


def entry() -> tuple[str, list[str]]:
    """Script and stylesheets of the built front end."""
    chunks = json.loads((DIST / ".vite" / "manifest.json").read_text())
    chunk = next(c for c in chunks.values() if c.get("isEntry"))
    return chunk["file"], chunk.get("css", [])


class Stage:
    """Plays the server for one page. The test moves time by hand: nothing happens between ``second`` calls."""

    def __init__(
        self,
        page: Page,
        pools: list[PretendPool] | None = None,
        theme: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.page = page
        self.clock = clock
        self.pools = {pool.name: pool for pool in ([PretendPool(at=clock())] if pools is None else pools)}
        self.sockets: list[WebSocketRoute] = []
        self.received: list[dict[str, Any]] = []
        self.rows = ledger_rows(120, datetime.fromtimestamp(clock(), UTC))
        self.reach: int | None = None  # so many requests are searched for one page; all
        self.theme = theme
        self.role = "admin"
        self.past: dict[str, list[dict[str, Any]]] = {}
        self.done: list[str] = []  # what operators did
        self.bodies: list[Any] = []
        self.queries: list[dict[str, list[str]]] = []  # for requests
        self.stored = self.rows[:2:-1]  # as they were stored, the oldest first; those after it end later
        self.tails: list[dict[str, list[str]]] = []
        self.tail_whole = True
        self.asked: list[str] = []  # what was looked for by name
        self.views: list[dict[str, Any]] = []
        self.objects = [
            {"kind": "tenant", "id": "acme", "label": "acme", "tenant": "acme", "state": ""},
            {"kind": "key", "id": "k2iTIrq3", "label": "ci (qm-k2iTIrq3)", "tenant": "acme", "state": ""},
        ]
        self.history = 300
        self.histories = True  # each pool's is sent without being asked for
        self.refuse_sockets = False
        self.live_status = 200
        self.deaf = False  # questions are not answered
        self.answers: dict[str, Any] = {}  # by what follows /api/v1/, before all others
        self.away: list[dict[str, Any]] = []  # sources that the server cannot see
        page.route(f"{ORIGIN}/**", self._http)
        page.route_web_socket("**/ws/live", self._socket)

    def open(self, path: str = "/") -> None:
        self.page.goto(ORIGIN + path)

    def second(self, deliver: bool = True) -> None:
        """One second passes in each pool; the change is sent unless it gets lost."""
        for pool in self.pools.values():
            patch = pool.step()
            if deliver:
                self.send({"type": "delta", "pool": pool.name, "seq": pool.seq, "patch": patch})

    def send(self, message: dict[str, Any]) -> None:
        if self.sockets:
            self.sockets[-1].send(json.dumps(message))

    def send_snapshot(self, pool: PretendPool) -> None:
        self.send({"type": "snapshot", "pool": pool.name, "seq": pool.seq, "data": pool.snapshot})

    def cut(self, code: int = 1001) -> None:
        self.sockets.pop().close(code=code)

    def _socket(self, socket: WebSocketRoute) -> None:
        if self.refuse_sockets:
            socket.close(code=1011)
            return
        self.sockets.append(socket)
        socket.on_message(self._heard)
        hello = {"type": "hello", "role": "admin", "heartbeat_s": 5, "at": self.clock(), "pools": list(self.pools)}
        if not self.histories:
            hello["histories"] = False
        self.send(hello | ({"sources": {"away": self.away, "pools": list(self.pools)}} if self.away else {}))
        for pool in self.pools.values():
            past = []
            for _ in range(self.history):
                past.append(pool.point())
                pool.step()
            pool.at = self.clock()
            for i, point in enumerate(past):
                point["at"] = pool.at - len(past) + i
            pool.step()
            self.history = 0  # a second connection finds the pool where it is
            self.send_snapshot(pool)
            self.past[pool.name] = past
            if self.histories:
                self.send({"type": "history", "pool": pool.name, "frames": past})

    def _heard(self, text: str | bytes) -> None:
        message = json.loads(text)
        self.received.append(message)
        if message.get("history"):
            self.send({"type": "history", "pool": message["pool"], "frames": self.past[message["pool"]]})
        elif message.get("type") == "resync" and not self.deaf:
            for pool in self.pools.values():
                if message.get("pool", pool.name) == pool.name:
                    self.send_snapshot(pool)

    def _http(self, route: Route) -> None:
        url = urlsplit(route.request.url)
        if url.path.startswith("/assets/"):
            file = DIST / url.path.lstrip("/")
            route.fulfill(path=file, content_type=mimetypes.guess_type(file.name)[0] or "application/octet-stream")
        elif route.request.method == "GET" and url.path.removeprefix("/api/v1/") in self.answers:
            route.fulfill(json=self.answers[url.path.removeprefix("/api/v1/")])
        elif url.path == "/api/v1/live":
            detail = {"detail": "Authentication credentials were not provided."}
            route.fulfill(status=self.live_status, json=detail if self.live_status != 200 else {})
        elif url.path == "/api/v1/requests":
            self.queries.append(parse_qs(url.query))
            self._requests(route, parse_qs(url.query))
        elif url.path == "/api/v1/requests/explore":
            route.fulfill(json=explored_of(self.rows, parse_qs(url.query)))
        elif url.path == "/api/v1/requests/tail":
            self.tails.append(parse_qs(url.query))
            place = int(self.tails[-1].get("place", ["0"])[0])
            rows = self.stored[place:][::-1]
            route.fulfill(json={"results": rows, "place": str(len(self.stored)), "whole": self.tail_whole})
        elif url.path.startswith("/api/v1/requests/"):
            found = [r for r in self.rows if r["request_id"] == url.path.rpartition("/")[2]]
            if route.request.method == "POST":
                self.done.append(url.path.removeprefix("/api/v1/"))
                route.fulfill(status=202, json={"was": "waiting"})
            elif found:
                route.fulfill(json=found[0] | {"story": story_of(found[0])})
            else:
                route.fulfill(status=404, json={"detail": "No request matches."})
        elif url.path == "/api/v1/tenant-colors":
            route.fulfill(json={"colors": {}})
        elif url.path == "/api/v1/find":
            text = parse_qs(url.query)["q"][0]
            self.asked.append(text)
            route.fulfill(json={"found": [row for row in self.objects if text.removeprefix("qm-") in row["id"]]})
        elif url.path == "/api/v1/saved-views":
            if route.request.method == "POST":
                body = route.request.post_data_json
                self.views.append({"id": len(self.views) + 1, "created_at": "2026-11-23T08:00:00Z"} | body)
                route.fulfill(status=201, json=self.views[-1])
            else:
                route.fulfill(json=self.views)
        elif url.path == "/api/v1/live/history":
            self._past(route, parse_qs(url.query))
        elif url.path.startswith("/api/v1/pools/") and url.path.endswith("/queue"):
            route.fulfill(json=queue_of(self.pools[url.path.split("/")[4]]))
        elif url.path.startswith("/api/v1/pools/") and url.path.rpartition("/")[2] in LOOP:
            route.fulfill(json=LOOP[url.path.rpartition("/")[2]])
        elif url.path.endswith(("/pause", "/resume", "/drain", "/undrain")) and route.request.method == "POST":
            self.done.append(url.path.removeprefix("/api/v1/"))
            self.bodies.append(route.request.post_data_json)
            route.fulfill(json={})
        elif url.path.removeprefix("/api/v1/") in EMPTY_BOOKS:
            route.fulfill(json={"count": 0, "next": None, "previous": None, "results": []})
        elif url.path.startswith("/login"):
            route.fulfill(content_type="text/html", body="<title>Log in</title>")
        else:
            script, styles = entry()
            links = "".join(f'<link rel="stylesheet" href="/{s}">' for s in styles)
            staff = "false" if self.role == "member" else "true"
            theme = f' data-theme="{self.theme}"' if self.theme else ""
            root = f'<div id="root" data-user="admin" data-staff="{staff}" data-role="{self.role}"></div>'
            route.fulfill(
                content_type="text/html",
                headers={"Content-Security-Policy": POLICY},
                body=f'<!doctype html><html lang="en"{theme}><head><title>Quartermaster</title>'
                f'<meta name="viewport" content="width=device-width, initial-scale=1">{links}'
                f'<script type="module" src="/{script}"></script></head>'
                f"<body>{root}</body></html>",
            )

    def _past(self, route: Route, query: dict[str, list[str]]) -> None:
        """Half the time asked for, in steps: the server was made then."""
        pool = self.pools[query["pool"][0]]
        minutes = int(query["minutes"][0])
        step = next(s for s in (1, 10, 60, 300, 1800) if minutes * 60 / s <= 900)
        until = float(query.get("until", [str(pool.at)])[0])
        point = pool.point()
        frames = [
            point | {"at": until - age, "depth": (age // step) % 40}
            for age in range(minutes * 30 // step * step, 0, -step)
        ]
        route.fulfill(json={"pool": pool.name, "step_s": step, "frames": frames})

    def _requests(self, route: Route, query: dict[str, list[str]]) -> None:
        start = int(query.get("cursor", ["0"])[0])
        rows = self.rows if self.reach is None else self.rows[start : start + self.reach]
        for name in ("outcome", "reason", "tenant", "pool"):
            if name in query:
                rows = [r for r in rows if r[name] == query[name][0]]
        ended = None
        if self.reach is None:
            after, rows = start + 50, rows[start:]
            more = len(rows) > 50
        else:  # as the server does where it searches in parts
            after = start + self.reach
            more = after < len(self.rows)
            ended = self.rows[after - 1]["received_at"] if more else None
        following = f"{ORIGIN}/api/v1/requests?cursor={after}" if more else None
        route.fulfill(json={"next": following, "previous": None, "searched_to": ended, "results": rows[:50]})


def explored_of(rows: list[dict[str, Any]], query: dict[str, list[str]]) -> dict[str, Any]:
    """Counts by value of what the stage has; one group. Figures over time are known for the second half of it."""
    counted = {name: Counter(row[name] for row in rows) for name in ("outcome", "reason", "tenant", "tier")}
    facets = {n: [{"value": v, "requests": k} for v, k in c.most_common()] for n, c in counted.items()}
    spans = dict.fromkeys((f"{span}_p{p}" for span in ("waited", "ttft", "total") for p in (50, 95)), 1.0)
    groups = [{"name": "acme", "requests": len(rows)} | spans] if rows else []
    heat = {"measure": "ttft", "from": 1.79e9, "to": 1.79e9 + 600, "bins": 60, "levels_s": [0.1, 1.0, 10.0]}
    heat["cells"] = [[30, 1, len(rows)]] if rows else []
    figures = None
    if "over_time" in query:
        begin, end = (datetime.fromisoformat(query[name][0]).timestamp() for name in ("from", "to"))
        step = (end - begin) / 60
        known: list[float | None] = [None] * 30 + [6.0] * 30
        names = ("requests", "refused", "failed", "input_tokens", "output_tokens", "waited_p50", "waited_p95")
        figures = {"from": begin, "step_s": step, "known_s": [0.0] * 30 + [step] * 30}
        figures["figures"] = dict.fromkeys((*names, "ttft_p50", "ttft_p95"), known) | {
            "attainment": [None] * 30 + [0.9] * 30
        }
    found = {"requests": len(rows), "searched_to": None, "share": 1.0, "facets": facets, "groups": groups, "heat": heat}
    return found | {"over_time": figures}
