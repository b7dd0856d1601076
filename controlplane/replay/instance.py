"""What a replay asks of the instance it drives: by HTTP, as any other client. No database, no settings of its own.

``/v1/models`` says whether the keys work; the management API, with an access token, says what tiers promise and what
the ledger holds.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from controlplane.replay.client import Sender
from scheduling.core.types import Slo
from tenants import keys

PAGE = 500
MARGIN = timedelta(seconds=5)  # between the clock of an answer and that of a ledger row
TIMEOUT_S = 30.0

# of each answer, what a simulation needs; one that an instance does not have is left out
_OF_POOL = ("slug", "policy", "policy_params", "modifiers", "routing", "routing_params", "headroom_slots", "predictor",
            "prefill_credit", "queue_limit", "queue_bytes", "threshold", "coefficients", "slo_mean_s")  # fmt: skip
ATTEMPTS, LOOK_S = 7, 0.5  # at what engines report of themselves
_OF_BACKEND = ("slug", "slots", "kv_tokens", "prefill_tokens", "phase")
_OF_TIER = ("service_class", "rank", "weight", "over_limit", "queue_limit", "max_wait_s")
_OF_SLO = ("ttft_s", "tbt_s", "ttlt_s")
_OF_ENTITLEMENT = ("slug", "tenant", "tier", "concurrency")
_OF_SHARING = (*_OF_ENTITLEMENT, "state", "tokens_per_s", "burst_tokens", "kv_tokens")


class CannotAsk(RuntimeError):
    """The instance does not say what is needed; the text says why, and what to do. Holds no secret."""


class Instance:
    """One instance as its clients see it. ``token``: for the management API; empty: it is not asked."""

    def __init__(self, base_url: str, token: str = "") -> None:
        self.base_url = base_url
        self.token = token
        self._http = httpx.Client(base_url=base_url, timeout=TIMEOUT_S, trust_env=False)
        self._began: datetime | None = None  # by the instance's clock

    def close(self) -> None:
        self._http.close()

    def check_keys(self, senders: Iterable[Sender], model: str) -> None:
        """Whether every key may use the model. Raises :class:`CannotAsk`."""
        for sender in senders:
            answer = self._get("/v1/models", sender.key)
            if answer.status_code == 401:
                raise CannotAsk(f"the key of {sender.name} is not valid at {self.base_url}")
            listed = {row["id"] for row in _json(answer, f"/v1/models with the key of {sender.name}")["data"]}
            if model not in listed:
                there = ", ".join(sorted(listed)) or "none"
                raise CannotAsk(f"the key of {sender.name} may not use model {model!r}; its models: {there}")
            self._began = self._began or _date(answer)

    def check_ledger(self, senders: Iterable[Sender]) -> None:
        """Whether the token opens the ledger's rows of every key. Raises :class:`CannotAsk`."""
        self._api("requests", limit="1")
        for sender in senders:
            self._api(f"keys/{_public_id(sender)}/", missing=f"the token's owner does not see the key of {sender.name}")

    def targets(self) -> dict[str, Slo]:
        """What every tier promises. Raises :class:`CannotAsk`."""
        slos = {row["slug"]: Slo(row["ttft_s"], row["tbt_s"], row["ttlt_s"]) for row in self._listed("slos/")}
        return {row["slug"]: slos[row["slo"]] for row in self._listed("tiers/") if row["slo"] in slos}

    def served_by(self, senders: Iterable[Sender], model: str) -> dict[str, Any]:
        """What decides and what serves: the model's pool, its backends that take work, the tiers, under which
        entitlement each sender comes, and which share the pool, all as the API has them but for addresses. Raises
        :class:`CannotAsk`."""
        pools = [row for row in self._listed("pools/") if model in (row["model"], *row["aliases"])]
        if len(pools) != 1:
            raise CannotAsk(f"the token's owner sees {len(pools)} pools of model {model!r}")
        pool = pools[0]["slug"]
        entitlements = {row["slug"]: row for row in self._listed("entitlements/")}
        slos = {row["slug"]: row for row in self._listed("slos/")}
        keys = {sender.name: self._api(f"keys/{_public_id(sender)}/") for sender in senders}
        budgets = self._step_budgets(pool)
        return {
            "pool": _only(pools[0], _OF_POOL),
            "backends": [
                {**_only(row, _OF_BACKEND), "step_tokens": budgets.get(row["slug"])}
                for row in self._listed("backends/")
                if row["pool"] == pool and not row["draining"]
            ],
            "tiers": {
                row["slug"]: {**_only(row, _OF_TIER), **_only(slos.get(row["slo"], {}), _OF_SLO)}
                for row in self._listed("tiers/")
            },
            "entitlements": {
                name: _only(entitlements.get(key["entitlement"], {}), _OF_ENTITLEMENT) for name, key in keys.items()
            },
            "sharing": [_only(row, _OF_SHARING) for row in entitlements.values() if row["pool"] == pool],
        }

    def _step_budgets(self, pool: str) -> dict[str, int | None]:
        """What engines report as their step budget. An instance that has just begun knows it a moment later."""
        for attempt in range(ATTEMPTS):
            rows = self._api("live")["pools"].get(pool, {}).get("backends", {})
            budgets = {slug: row.get("engine_step_tokens") for slug, row in rows.items()}
            if budgets and None not in budgets.values():
                break
            time.sleep(LOOK_S if attempt < ATTEMPTS - 1 else 0)
        return budgets

    def turnaround_ms(self, pool: str) -> float | None:
        """How long the pool's leader took lately from a first token to the next prompt in its engine; None where it has
        not measured it. Raises :class:`CannotAsk`."""
        measured = self._api("live")["pools"].get(pool, {}).get("turnaround_ms")
        return None if measured is None else float(measured)

    def ledger(self, senders: Iterable[Sender]) -> dict[str, dict[str, Any]]:
        """The ledger's rows of these keys since :meth:`check_keys`, by request id. Raises :class:`CannotAsk`."""
        since = (self._began or datetime.now(UTC)) - MARGIN
        entries: dict[str, dict[str, Any]] = {}
        for sender in senders:
            params = {"key_id": _public_id(sender), "from": since.isoformat(), "limit": str(PAGE)}
            while params:
                page = self._api("requests", **params)
                entries |= {row["request_id"]: row for row in page["results"]}
                params = dict(httpx.URL(page["next"]).params) if page["next"] else {}
        return entries

    def _listed(self, path: str) -> Iterator[dict[str, Any]]:
        offset = 0
        while True:
            page = self._api(path, limit="100", offset=str(offset))
            yield from page["results"]
            offset += len(page["results"])
            if not page["next"] or not page["results"]:
                return

    def _api(self, path: str, *, missing: str = "", **query: str) -> dict[str, Any]:
        answer = self._get(f"/api/v1/{path}", self.token, query)
        if answer.status_code in (401, 403):
            raise CannotAsk(f"the access token is not valid for {self.base_url}/api/v1/{path}")
        if answer.status_code == 404 and missing:
            raise CannotAsk(missing)
        return _json(answer, f"/api/v1/{path}")

    def _get(self, path: str, credential: str, query: dict[str, str] | None = None) -> httpx.Response:
        try:
            return self._http.get(path, params=query, headers={"authorization": f"Bearer {credential}"})
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as problem:  # ValueError: a key with line ends
            raise CannotAsk(f"{self.base_url}{path} does not answer ({type(problem).__name__})") from None


def _json(answer: httpx.Response, what: str) -> dict[str, Any]:
    if answer.status_code != 200:
        raise CannotAsk(f"{what} was answered {answer.status_code}")
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not isinstance(body, dict):
        raise CannotAsk(f"{what}: the answer is not of this API; is the URL that of an instance?")
    return body


def _only(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names if name in row}


def _date(answer: httpx.Response) -> datetime:
    try:
        return parsedate_to_datetime(answer.headers["date"]).astimezone(UTC)
    except (KeyError, ValueError):
        return datetime.now(UTC)


def _public_id(sender: Sender) -> str:
    credential = keys.parse(sender.key)
    if credential is None:
        raise CannotAsk(f"the key of {sender.name} is not a key of an instance (qm-...)")
    return credential.public_id
