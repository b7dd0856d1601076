"""A pool's last quarter of an hour, as a dashboard gets it when it opens: complete in time, and within its size."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import msgspec
import pytest

from telemetry.feed import history, hub, snapshots
from telemetry.feed.window import Window
from tests.support.telemetry_world import ENTITLEMENTS, NOW, sample


def wide_points(tenants: int, seconds: int = 900) -> list[dict[str, Any]]:
    point = history.point(snapshots.snapshot(sample(), Window(), ENTITLEMENTS, 1))
    tenant, share = next(iter(point["tenants"].values())), next(iter(point["entitlements"].values()))
    return [
        point
        | {
            "at": NOW + n,
            "tenants": {f"tenant-{t:030d}": tenant for t in range(tenants)},
            "entitlements": {f"share-{t:030d}": share | {"running": tenants - t} for t in range(tenants)},
        }
        for n in range(seconds)
    ]


@pytest.mark.parametrize("tenants", [5, 50])
def test_a_quarter_of_an_hour_is_sent_so_that_charts_draw_it_as_one_line(tenants: int) -> None:
    text = hub.encode_history("llama", wide_points(tenants), None)
    frames = msgspec.json.decode(text)["frames"]
    assert len(text) <= hub.HISTORY_BYTES
    assert (frames[0]["at"], frames[-1]["at"]) == (NOW, NOW + 899)
    times = [frame["at"] for frame in frames]
    assert max(b - a for a, b in pairwise(times)) < 3.5, "frontend/src/charts/columns.ts breaks a line there"
    assert max(b - a for a, b in pairwise(times[-300:])) == 1


def test_what_the_others_had_is_not_lost_with_their_rows() -> None:
    (full, *_) = wide_points(50, 1)
    (sent,) = msgspec.json.decode(hub.encode_history("llama", [full], None))["frames"]
    assert len(sent["entitlements"]) == hub.HISTORY_ROWS[0]
    own = sum(row["running"] for row in sent["entitlements"].values())
    assert own + sent["rest"]["running"] == sum(row["running"] for row in full["entitlements"].values())
    assert set(next(iter(sent["tenants"].values()))) == {"waiting", "running"}


def test_a_history_that_cannot_fit_is_thinned_until_it_does() -> None:
    names = {f"backend-{n:040d}": {"gpu": 0.51, "memory": 0.52} for n in range(64)}
    text = hub.encode_history("llama", [point | {"backends": names} for point in wide_points(5)], None)
    frames = msgspec.json.decode(text)["frames"]
    assert len(text) <= hub.HISTORY_BYTES
    assert frames[-1]["at"] == NOW + 899
    assert len(frames) > 50
