"""Predictions of output length on the data plane: asked on every request, taught by what every gateway saw.

Per pool and process one :class:`PoolForecasts`. A request costs its category, its embedding and a search among its
tenant's past prompts, at most 10,000 (together some 0.1 ms, ``docs/internals/estimates.md``); a prompt that its tenant
sent before, word for word, far less. Learning goes the long way for all: an ended request is put on the pool's history
stream, and everything on the stream, our own included, is learned from, so that gateways agree and a restarted one
knows what it knew. Regressions are fitted in a thread, after what they learn from was read. What is learned of a tenant
serves that tenant (``scheduling/core/estimate/chain.py``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from hashlib import blake2b

import msgspec

from scheduling.core.estimate.category import classify
from scheduling.core.estimate.chain import Chain, Outlook, TenantChain
from scheduling.core.estimate.contracts import PromptFacts
from scheduling.core.estimate.features import COUNT as FEATURES
from scheduling.core.estimate.features import features
from scheduling.core.estimate.others import KINDS, Others
from scheduling.core.estimate.shares import Shares
from scheduling.core.types import Catalog, PoolSpec, PredictorMode
from scheduling.estimation.embedding import Embedder, Vector, pack, unpack
from scheduling.estimation.regression import RidgeRegression
from scheduling.estimation.window import RingWindow
from scheduling.gateway.bodies.openai_types import ChatRequest
from scheduling.gateway.bodies.prepare import Prepared
from scheduling.gateway.entry.auth import Access
from scheduling.state.history import HistoryStream, Observation, Reset
from scheduling.state.types import StateError, StateUnavailable

log = logging.getLogger(__name__)

ROUND_S = 0.4  # between two looks at the stream: what one gateway saw, the others know well within 2 s
READ = 200  # observations learned at once; other requests get their turn in between
FIT_AFTER = 20  # observations, while many are read
TAUGHT_PER_ROUND = 50  # observations a gateway gives per round; of more, a sample that is fair to each tenant
SHOWN_EVERY = 12  # rounds
TENANTS_SHOWN = 500  # of a pool, by name
FACTORS_SHOWN = 12  # of a tenant, the most taught
REGRESSIONS_SHOWN = 5  # of a tenant, the most taught
PROMPTS_KEPT = 2_048  # embeddings of prompts that may come again, by tenant and digest
SYSTEM_LOOKED_AT = 200  # characters of a system message: it tells whose prompt it is, and is the same in all of theirs
TEXT_LOOKED_AT = 4_200


def prompt_text(prepared: Prepared) -> str:
    """What a prompt is judged by: the last thing the user said, then the beginning of the system's message."""
    body = prepared.judged
    if not isinstance(body, ChatRequest):
        return body.prompt[:TEXT_LOOKED_AT] if isinstance(body.prompt, str) else ""
    user = system = ""
    for message in reversed(body.messages):
        if message.role == "user":
            content = message.content
            user = content if type(content) is str else " ".join([part.text or "" for part in content or ()])  # type: ignore[union-attr]
            break
    first = body.messages[0]
    if first.role in ("system", "developer") and type(first.content) is str:
        system = first.content[:SYSTEM_LOOKED_AT]
    return f"{user[: TEXT_LOOKED_AT - SYSTEM_LOOKED_AT]}\n{system}" if system else user[:TEXT_LOOKED_AT]


class _Ended(msgspec.Struct, frozen=True):
    """An answer that may be reported to the other gateways. Few are, so the report is computed only when one is."""

    outlook: Outlook
    actual: int  # output tokens
    cut: bool  # by its bound

    def observation(self) -> Observation:
        facts, forecast = self.outlook.facts, self.outlook.forecast
        return Observation(
            facts.application, facts.tenant, facts.model, facts.category, round(facts.input_tokens), self.actual,
            self.cut, forecast.prediction.source, forecast.raw_p90,
            b"" if facts.embedding is None else pack(facts.embedding), facts.features,
            forecast.heard.scored_by() if facts.features else None,
        )  # fmt: skip


class _Telling:
    """Observations to send in the next round: at most ``TAUGHT_PER_ROUND``, a fair number of each tenant and a uniform
    sample of its own, so that one tenant's storm does not displace what others' answers teach."""

    def __init__(self) -> None:
        self.pending: dict[str, list[_Ended]] = {}
        self._offered: dict[str, int] = {}
        self._shares = Shares()

    def offer(self, seen: _Ended) -> None:
        name = seen.outlook.facts.tenant
        offered = self._offered[name] = self._offered.get(name, 0) + 1
        if self._shares.total >= TAUGHT_PER_ROUND:
            largest = self._shares.largest()
            if self._shares.of(name) >= self._shares.of(largest):
                own = self.pending[name]
                place = random.randrange(offered)
                if place < len(own):
                    own[place] = seen
                return
            others = self.pending[largest]
            others[random.randrange(len(others))] = others[-1]
            others.pop()
            self._shares.remove(largest)
        self.pending.setdefault(name, []).append(seen)
        self._shares.add(name)

    def all(self) -> list[Observation]:
        return [seen.observation() for tenant in self.pending.values() for seen in tenant]


class PoolForecasts:
    """The predictors of one pool, and what of it is still to be told to the others."""

    def __init__(self, mode: PredictorMode, stream: HistoryStream, embedder: Embedder) -> None:
        self.mode = mode
        self.stream = stream
        prompts = mode is PredictorMode.SIMILAR
        self.chain = Chain(RingWindow if prompts else None, RidgeRegression if prompts else None)
        self.learned = 0  # observations since this process started
        self._embedder = embedder
        self._prompts: dict[tuple[str, bytes], tuple[str, Vector | None, bytes]] = {}
        # what was said since something was last learned: the same question has the same answer until then
        self._looked: dict[tuple[tuple[str, bytes], str, str, int, int], Outlook] = {}
        self._telling = _Telling()
        self._last_id = "0"

    def look(self, access: Access, prepared: Prepared, input_tokens: int, bound: int) -> Outlook:
        """What to expect of a request, which keeps it until its end. Never fails for any text."""
        tenant = access.entitlement.tenant
        text = prompt_text(prepared)
        # by tenant: how long this takes tells nobody what others have asked
        place = tenant, blake2b(text.encode(errors="surrogatepass"), digest_size=16).digest() if text else b""
        question = place, access.key.id, access.pool.model, input_tokens, bound
        outlook = self._looked.get(question)
        if outlook is None:
            if len(self._looked) >= PROMPTS_KEPT:
                self._looked.clear()
            category, vector, signs = self._read(place, text)
            facts = PromptFacts(access.key.id, tenant, access.pool.model, category, input_tokens, bound, vector, signs)
            outlook = self._looked[question] = Outlook(facts, self.chain.predict(facts))
        return outlook

    def _read(self, place: tuple[str, bytes], text: str) -> tuple[str, Vector | None, bytes]:
        if not text:
            return "", None, b""
        prompt = self._prompts.get(place)
        if prompt is None:
            if len(self._prompts) >= PROMPTS_KEPT:
                del self._prompts[next(iter(self._prompts))]
            category = classify(text).value
            if self.mode is PredictorMode.SIMILAR:
                vector, counted = self._embedder.read(text)
                prompt = category, vector, features(text, category, counted)
            else:
                prompt = category, None, b""
            self._prompts[place] = prompt
        return prompt

    def ended(self, outlook: Outlook, actual: int) -> None:
        """A request came to its end by itself with so many output tokens. Told to all in the next round."""
        if actual < 1:
            return
        facts = outlook.facts
        # an engine that stops below our bound will do so again: only our own bound hides how long an answer is
        cut = facts.output_bound is not None and actual >= facts.output_bound
        self._telling.offer(_Ended(outlook, actual, cut))

    async def round(self) -> None:
        """Tells what was seen here, learns what was seen anywhere. Raises ``StateUnavailable``."""
        await self.tell()
        await self._read_all()
        await self._fit()

    async def tell(self) -> None:
        """Tells what was seen here. Raises ``StateUnavailable``."""
        if self._telling.pending:
            telling, self._telling = self._telling, _Telling()
            await self.stream.append(telling.all())

    async def _read_all(self) -> None:
        while entries := await self.stream.read(self._last_id, READ):
            for number, (entry_id, seen) in enumerate(entries, 1):
                self._last_id = entry_id  # of each: who is stopped in between goes on behind it
                self._learn(seen)
                if number % FIT_AFTER == 0:  # regressions are scored on what they have not learned yet
                    await self._fit()
            if len(entries) < READ:
                return
            await asyncio.sleep(0)

    async def _fit(self) -> None:
        if self.chain.due:
            await asyncio.to_thread(self.chain.fit)
            self._looked.clear()

    def _learn(self, seen: Observation | Reset | None) -> None:
        self._looked.clear()
        if isinstance(seen, Reset):
            self.chain.reset(seen.category or None)
        elif seen is not None:
            vector = None
            if seen.embedding and self.mode is PredictorMode.SIMILAR:
                try:
                    vector = unpack(seen.embedding)
                except ValueError:  # another version's: its lengths still count
                    vector = None
            facts = PromptFacts(
                seen.application, seen.tenant, seen.model, seen.category, seen.input_tokens, None, vector,
                seen.features if len(seen.features) == FEATURES else b"",  # another version's say something else
            )  # fmt: skip
            self.chain.observe(
                facts, seen.actual, cut=seen.cut, source=seen.source, raw_p90=seen.raw_p90,
                others=None if seen.others is None or not 0 <= seen.others[0] < KINDS else Others(*seen.others),
            )  # fmt: skip
            self.learned += 1

    def drift(self) -> bytes:
        """What was learned, as JSON: the pool's counts and what all tenants together taught it (scope ``prior``), and
        for each tenant its biases, calibration and counts. The caller decides who may see which part."""
        chain = self.chain
        shown = sorted(chain.tenants(), key=lambda item: item[0])[:TENANTS_SHOWN]
        return msgspec.json.encode(
            {
                "predictor": self.mode,
                "learned": self.learned,
                "prompts": chain.prompts,
                "prior": [
                    {"category": category, "factor": factor, "tenants": tenants}
                    for category, factor, tenants in chain.prior.shared_factors()
                ],
                "tenants": {name: _shown(tenant) for name, tenant in shown},
            }
        )


def _shown(tenant: TenantChain) -> dict[str, object]:
    factors = [f for f in tenant.baseline.drift.factors() if f[0] == "category"]
    factors.sort(key=lambda f: -f[3].observed)
    return {
        "learned": tenant.learned,
        "prompts": 0 if tenant.similar is None else len(tenant.similar),
        "factors": [
            {"category": category, "factor": b.value, "observed": b.observed}
            for _, _, category, b in factors[:FACTORS_SHOWN]
        ],
        "calibration": [
            {"source": source, "factor": factor, "observed": observed}
            for source, (factor, observed) in tenant.calibrator.factors().items()
        ],
        "regressions": _regressions(tenant),
    }


def _regressions(tenant: TenantChain) -> list[dict[str, object]]:
    """By key, the most taught: errors of the logarithm of the length, its own and those of the other predictors on the
    same answers, and which of the two is used."""
    if tenant.regression is None:
        return []
    scores = sorted(tenant.regression.scores(), key=lambda score: -score[1])[:REGRESSIONS_SHOWN]
    return [
        {"key": key, "answers": answers, "error": round(own, 4), "others": round(others, 4), "used": used}
        for key, answers, own, others, used in scores
    ]


class Forecasts:
    """All pools of this process that predict."""

    def __init__(self, stream: Callable[[str], HistoryStream]) -> None:
        self._stream = stream
        self._pools: dict[str, PoolForecasts] = {}
        self._embedder = Embedder()
        self._task: asyncio.Task[None] | None = None

    def resume(self, former: Forecasts) -> None:
        """Goes on with what another one learned, which has stopped. Call it before the pools are configured."""
        self._embedder = former._embedder
        self._pools = former._pools
        for name, pool in self._pools.items():
            pool.stream = self._stream(name)

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name="gateway-forecasts")

    async def stop(self) -> None:
        """Sends the reports that are left to the other gateways, if shared state can be reached."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._task = None
        for pool in self._pools.values():
            try:
                await pool.tell()
            except (StateUnavailable, StateError):
                return

    def configure(self, catalog: Catalog) -> None:
        """Follows the pools' settings: what was learned stays where the mode did."""
        pools = {}
        for spec in catalog.pools.values():
            if spec.predictor is PredictorMode.OFF:
                continue
            forecasts = self._pools.get(spec.id)
            if forecasts is None or forecasts.mode is not spec.predictor:
                forecasts = PoolForecasts(spec.predictor, self._stream(spec.id), self._embedder)
            pools[spec.id] = forecasts
        self._pools = pools

    def of(self, pool: PoolSpec) -> PoolForecasts | None:
        """None where the pool predicts nothing: its requests are expected to reach their bound."""
        return self._pools.get(pool.id)

    async def _run(self) -> None:
        rounds = 0
        while True:
            for pool_id, pool in list(self._pools.items()):
                try:
                    await pool.round()
                    if rounds % SHOWN_EVERY == 0 and pool.learned:
                        await pool.stream.show(pool.drift())
                except StateUnavailable:
                    continue
                except Exception:
                    log.exception("what was seen of pool %s was not learned from", pool_id)
            rounds += 1
            await asyncio.sleep(ROUND_S)
