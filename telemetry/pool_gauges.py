"""Gauges of pools and backends: what the leaders' stored snapshots say, read by a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

from scheduling.core.types import ServiceClass
from telemetry.feed.store import LiveStore, LiveUnavailable, Memory

log = logging.getLogger(__name__)

REFRESH_S = 1.0
FIRST_S = 2.0  # a scrape waits so long for the first figures after a start or a rest; Redis has half a second
TOLD_S = 15.0  # older figures are left out: a monitor would draw them as the present. The alert for it is as late
RESTS_AFTER_S = 120.0  # without a scrape for so long: stop reading snapshots
SKEW = "clock_skew_seconds"
OTHERS = "_other"  # no entitlement has this name: names have no underscore
LEFT_OUT = "label_values_left_out"
SHOWN = 500  # entitlements with series of their own, where no setting says otherwise

_BY_ENTITLEMENT = {
    "weight": "entitlement_weight",
    "debt": "entitlement_debt",
    "burst": "entitlement_burst",
    "share": "entitlement_share",
    "bucket_gap": "bucket_gap_tokens",
}
_CLASSES = [service_class.value for service_class in ServiceClass]  # the most reserved first

Labels = tuple[str, ...]
Samples = dict[str, list[tuple[Labels, float]]]


class PoolGauges:
    """Gauges out of the stored snapshots, at most a second behind them while metrics are scraped."""

    def __init__(
        self, store: LiveStore, of_backend: Mapping[str, str], clock: Callable[[], float], shown: int = SHOWN
    ) -> None:
        """``of_backend``: by gauge, the key of a backend's figure in a snapshot. ``shown``: how many entitlements have
        series of their own, over all pools."""
        self._store = store
        self._of_backend = of_backend
        self._clock = clock
        self._shown = shown
        self._snapshots: dict[str, dict[str, Any]] = {}
        self._heard_s: dict[str, float] = {}  # when the last one was new here, monotonic
        self._wanted_s = 0.0
        self._starting = threading.Lock()
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._tried = threading.Event()  # since the thread began, the snapshots were read, or could not be
        self._available = False
        self._memory: Memory | None = None

    def wanted(self) -> None:
        """Called at each scrape: keeps reading a while. Waits for the first figures, :data:`FIRST_S` at most: a page
        without them would say that there is no pool."""
        self._wanted_s = time.monotonic()
        with self._starting:
            if self._thread is None and not self._stop.is_set():
                self._tried.clear()
                self._thread = threading.Thread(target=self._run, name="metrics-pools", daemon=True)
                self._thread.start()
        self._tried.wait(FIRST_S)

    def refresh(self) -> None:
        """Reads the snapshots once. What cannot be read keeps its old figures for a while, and its age tells."""
        try:
            versions = {name: (int(s["epoch"]), int(s["seq"])) for name, s in self._snapshots.items()}
            newer = self._store.load_all(versions)
            self._memory = self._store.memory()
        except LiveUnavailable:
            self._available = False
            return
        self._available = True
        heard_s = time.monotonic()
        self._heard_s = {
            name: heard_s if stored is not None else self._heard_s.get(name, heard_s) for name, stored in newer.items()
        }
        self._snapshots = {
            name: stored.snapshot if stored is not None else self._snapshots[name] for name, stored in newer.items()
        }

    def samples(self) -> Samples:
        """Label values and figure by metric."""
        out: Samples = defaultdict(list)
        out["snapshots_available"] = [((), float(self._available))]
        if self._memory is not None and self._available:
            memory = self._memory
            out["redis_used_memory_bytes"] = [((), memory.used)]
            out["redis_max_memory_bytes"] = [((), memory.most)] if memory.most else []
            out["redis_evicts"] = [] if memory.evicts is None else [((), float(memory.evicts))]
        now_s = self._clock()
        entitlements: list[tuple[str, str, dict[str, Any]]] = []
        for pool, snapshot in self._snapshots.items():
            out["snapshot_age_seconds"].append(((pool,), max(0.0, now_s - snapshot["at"])))
            # By this process's own clock: the leader's may be a minute behind it, and the skew is one of the figures.
            if time.monotonic() - self._heard_s.get(pool, float("inf")) > TOLD_S:
                continue
            for name, value in (
                ("leader_epoch", snapshot["epoch"]),
                ("queue_depth", snapshot["queue"]["depth"]),
                ("queue_oldest_seconds", snapshot["queue"]["oldest_s"]),
                ("running", snapshot["running"]),
                ("slots", snapshot["slots"]),
                ("kv_used_tokens", snapshot["kv_used"]),
                ("kv_capacity_tokens", snapshot["kv_tokens"]),
            ):
                out[name].append(((pool,), value))
            if "wakes_in_s" in snapshot:
                out["pool_wakes_in_seconds"].append(((pool,), snapshot["wakes_in_s"]))
            if "unread" in (state := snapshot.get("state", {})):
                out["ledger_unread"].append(((pool,), state["unread"]))
            if "skew_s" in state:
                out[SKEW].append((("leader", pool), state["skew_s"]))
            if "lost" in state:
                out["state_lost_timestamp_seconds"].append(((pool,), state["lost"]))
            entitlements += ((pool, name, row) for name, row in snapshot["entitlements"].items())
            for backend, row in snapshot["backends"].items():
                out["backend_up"].append(((pool, backend), float(row["state"] == "ready")))
                asleep = row["state"] in ("asleep", "waking") and not row.get("wake_fails")
                out["backend_asleep"].append(((pool, backend), float(asleep)))
                for name, key in self._of_backend.items():
                    if key in row:
                        out[name].append(((pool, backend), row[key]))
                for adapter, adapter_state in row.get("adapters", {}).items():
                    if adapter_state not in ("unknown", "unconfigured"):
                        loaded = float(adapter_state == "loaded")
                        out["backend_adapter_loaded"].append(((pool, backend, adapter), loaded))
        self._entitlements(entitlements, out)
        return out

    def counted(self) -> dict[str, dict[Labels, int]]:
        """Counters that pools keep in Redis."""
        state = {pool: snapshot.get("state", {}) for pool, snapshot in self._snapshots.items()}
        return {"state_rebuilt_total": {(pool,): int(s["rebuilt"]) for pool, s in state.items() if "rebuilt" in s}}

    def close(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def _entitlements(self, rows: list[tuple[str, str, dict[str, Any]]], out: Samples) -> None:
        """Figures of the entitlements with most reserved, and of each pool's others the worst one.

        Which these are follows from what is configured alone: every process and every scrape names the same.
        """
        if len(rows) > self._shown:
            rows.sort(key=_most_reserved)
        for pool, name, row in rows[: self._shown]:
            for key in _BY_ENTITLEMENT.keys() & row.keys():
                out[_BY_ENTITLEMENT[key]].append(((pool, name), row[key]))
        worst: dict[tuple[str, str], float] = {}  # by figure and pool
        for pool, _, row in rows[self._shown :]:
            for key in _BY_ENTITLEMENT.keys() & row.keys():
                size = abs if key == "bucket_gap" else float
                worst[key, pool] = max(worst.get((key, pool), row[key]), row[key], key=size)
        for (key, pool), value in worst.items():
            out[_BY_ENTITLEMENT[key]].append(((pool, OTHERS), value))
        if rows:
            out[LEFT_OUT].append((("entitlement",), max(0, len(rows) - self._shown)))

    def _run(self) -> None:
        while True:
            try:
                self.refresh()
            except Exception:  # the next look may go well; without this thread there would be none
                log.exception("the figures of pools for /metrics could not be read")
            self._tried.set()
            if self._stop.wait(REFRESH_S):
                return
            with self._starting:
                if time.monotonic() - self._wanted_s > RESTS_AFTER_S:
                    self._thread = None
                    return


def _most_reserved(entry: tuple[str, str, Mapping[str, Any]]) -> tuple[int, float, str, str]:
    pool, name, row = entry
    of = row.get("class", "")
    return _CLASSES.index(of) if of in _CLASSES else len(_CLASSES), -row.get("concurrency", 0), pool, name
