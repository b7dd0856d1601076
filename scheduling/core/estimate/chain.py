"""The predictor a pool uses: similar prompts, else the application's history, else the category, else the prior.

Each says nothing where it knows too little, and the next one is asked. Above them a regression on the prompt, one per
application, speaks in their stead where its past errors were smaller than theirs (``regression.py``). Whoever speaks is
named in ``source``; its 90 % limit is calibrated by its own past errors. The last one always speaks.

Every tenant has predictors of its own, taught by its own answers alone. Of the others it has one coarse factor per
category (``prior.py``), which no single one of them can move by more than 15 %, and which fades with its own answers.
Memory is the pool's: the places for past prompts and for applications are divided fairly, so that one tenant's storm
takes nothing from a tenant that holds less than an equal share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from scheduling.core.estimate.conformal import Calibrator
from scheduling.core.estimate.contracts import Prediction, Predictor, PromptFacts
from scheduling.core.estimate.drift import CategoryBaseline, Drift
from scheduling.core.estimate.history import APPLICATIONS_KEPT, ApplicationHistory
from scheduling.core.estimate.others import Heard, Others
from scheduling.core.estimate.prior import PoolPrior
from scheduling.core.estimate.regression import MODELS_KEPT, PromptRegression, Regression
from scheduling.core.estimate.semantic import WINDOW, PastPrompts, SimilarPrompts
from scheduling.core.estimate.shares import Shares
from scheduling.core.frozen import quickly_made

TENANTS_KEPT = 1_024  # of one pool; the one longest unheard of is forgotten


class FirstThatKnows:
    """The first of several predictors that has something to say."""

    def __init__(self, *predictors: Predictor) -> None:
        self._predictors = predictors

    def predict(self, facts: PromptFacts) -> Prediction | None:
        for predictor in self._predictors:
            prediction = predictor.predict(facts)
            if prediction is not None:
                return prediction
        return None

    def observe(self, facts: PromptFacts, actual: int, *, cut: bool = False) -> None:
        for predictor in self._predictors:
            predictor.observe(facts, actual, cut=cut)


@quickly_made
@dataclass(frozen=True, slots=True)
class Forecast:
    """A prediction and its calibrated 90 % limit [tokens]."""

    prediction: Prediction
    p90: float
    raw_p90: float  # the prediction's own, which the calibration learns from
    heard: Heard = field(compare=False, repr=False)  # from all but the regression


@quickly_made
@dataclass(frozen=True, slots=True)
class Outlook:
    """What was known and believed of one request, kept until it ends."""

    facts: PromptFacts
    forecast: Forecast


class TenantChain:
    """All predictors of one tenant in one pool. ``window`` None: similar prompts are not looked for;
    ``make_regression`` None: neither is what prompts ask for."""

    def __init__(
        self, window: PastPrompts | None, baseline: CategoryBaseline,
        make_regression: Callable[[], Regression] | None = None,
    ) -> None:  # fmt: skip
        self.baseline = baseline
        self.history = ApplicationHistory()
        self.calibrator = Calibrator()
        self.learned = 0  # answers
        self.wider = FirstThatKnows(self.history, baseline)
        self.similar = None if window is None else SimilarPrompts(window, self.wider)
        self.regression = None if make_regression is None else PromptRegression(make_regression)

    def predict(self, facts: PromptFacts) -> Forecast:
        said, regression = None, self.regression
        heard = self.heard(facts, look=regression is None or regression.looks(facts))
        if regression is not None:
            said = regression.predict(facts, heard)
        prediction = (said or heard.prediction()).truncated(facts.output_bound)
        raw_p90 = prediction.quantile(self.calibrator.level)
        return Forecast(
            prediction, self.calibrator.upper(prediction.source, raw_p90, facts.output_bound), raw_p90, heard
        )

    def heard(self, facts: PromptFacts, *, look: bool = True) -> Heard:
        """What all but the regression say. ``look`` False: a prompt that is known by heart is recalled, but no others
        are looked for."""
        wider, similar = self.wider.predict(facts), self.similar
        assert wider is not None  # the baseline always speaks
        if similar is None:
            return Heard(None, wider)
        alike = similar.look(facts, wider) if look else similar.recall(facts, wider)
        return Heard(alike, wider)


class Chain:
    """The predictors of one pool, by tenant. ``make_window``: an empty window of past prompts; None: similar prompts
    are not looked for. ``make_regression``: an empty regression; None: prompts are not learned from otherwise.
    ``prompts`` and ``models``: how many past prompts and regressions all tenants together may hold. ``learning`` False:
    only the table of categories is asked, as it came."""

    def __init__(
        self, make_window: Callable[[], PastPrompts] | None,
        make_regression: Callable[[], Regression] | None = None, *, learning: bool = True, prompts: int = WINDOW,
        models: int = MODELS_KEPT,
    ) -> None:  # fmt: skip
        self.prior = PoolPrior()
        self._make_window = make_window
        self._make_regression = make_regression
        self._models_kept = models
        self._models = Shares()
        self._due: dict[Regression, None] = {}  # to be fitted
        self._learning = learning
        self._prompts_kept = prompts
        self._tenants: dict[str, TenantChain] = {}  # the last in order is the one heard of last
        self._prompts = Shares()
        self._applications = Shares()
        self._stranger = self._new()  # of whom nothing is known

    @property
    def prompts(self) -> int:
        """Past prompts held, of all tenants."""
        return self._prompts.total

    def tenants(self) -> Iterator[tuple[str, TenantChain]]:
        """By name, those something was learned of."""
        return iter(self._tenants.items())

    def of(self, tenant: str) -> TenantChain | None:
        return self._tenants.get(tenant)

    def predict(self, facts: PromptFacts) -> Forecast:
        return self._tenants.get(facts.tenant, self._stranger).predict(facts)

    def observe(
        self, facts: PromptFacts, actual: int, *, cut: bool = False, source: str = "", raw_p90: float = 0.0,
        others: Others | None = None,
    ) -> None:  # fmt: skip
        """Learns from an answer of ``actual`` tokens. ``source``, ``raw_p90``: what had predicted it, and its 90 %
        length. ``others``: what all sources but the regression had said; None: they are asked if needed."""
        if not self._learning:
            return
        name = facts.tenant
        tenant = self._tenants.pop(name, None)
        if tenant is None:
            while len(self._tenants) >= TENANTS_KEPT:
                self._forget(next(iter(self._tenants)))
            tenant = self._new()
        self._tenants[name] = tenant
        tenant.learned += 1
        if source:
            tenant.calibrator.observe(source, raw_p90, actual)
        if tenant.regression is not None:
            self._regress(name, tenant, facts, actual, cut, others)
        before = len(tenant.history)
        tenant.wider.observe(facts, actual, cut=cut)
        drift = tenant.baseline.drift
        self.prior.vote(
            name, facts.category, drift.bias(facts.category, model=facts.model), drift.observed(facts.category)
        )
        if len(tenant.history) > before:
            self._applications.add(name)
            if self._applications.total > APPLICATIONS_KEPT:
                largest = self._applications.largest()
                self._tenants[largest].history.forget_oldest()
                self._applications.remove(largest)
        if tenant.similar is not None:
            self._remember(name, tenant.similar, facts, actual, cut)

    def fit(self) -> None:
        """Lets the regressions that are due learn: some 0.3 ms each. May run in another thread while this one predicts,
        but not while it observes."""
        due, self._due = self._due, {}
        for regression in due:
            regression.fit()

    @property
    def due(self) -> int:
        """Regressions that ``fit`` would look at."""
        return len(self._due)

    @property
    def models(self) -> int:
        """Regressions held, of all tenants."""
        return self._models.total

    def _regress(
        self, name: str, tenant: TenantChain, facts: PromptFacts, actual: int, cut: bool, others: Others | None
    ) -> None:
        own = tenant.regression
        assert own is not None
        before = len(own)
        if not own.scoring(facts):
            others = None
        elif others is None:  # before anybody learns the answer: what would have been said of it
            others = tenant.heard(facts).scored_by()
        due = own.observe(facts, actual, cut=cut, others=others)
        if due is not None:
            self._due[due] = None
        if len(own) == before:
            return
        self._models.add(name)
        if self._models.total > self._models_kept:
            largest = self._models.largest()
            giving = self._tenants[largest].regression
            assert giving is not None
            giving.forget_oldest()
            self._models.remove(largest)

    def _remember(self, name: str, similar: SimilarPrompts, facts: PromptFacts, actual: int, cut: bool) -> None:
        if facts.embedding is None:
            return
        before = len(similar)
        similar.observe(facts, actual, cut=cut)
        if len(similar) == before:
            return  # its window was full
        self._prompts.add(name)
        if self._prompts.total > self._prompts_kept:
            largest = self._prompts.largest()
            giving = self._tenants[largest].similar
            assert giving is not None
            giving.forget_oldest()
            self._prompts.remove(largest)

    def reset(self, category: str | None = None) -> None:
        """Forgets the drift of one category, or of all with what calibration and regressions know."""
        self.prior.reset(category)
        for tenant in self._tenants.values():
            tenant.baseline.drift.reset(category)
            if category is None:
                tenant.calibrator = Calibrator()
                if tenant.regression is not None:
                    tenant.regression.clear()
        if category is None:
            self._models = Shares()
            self._due = {}

    def _new(self) -> TenantChain:
        drift = None if self._learning else Drift(on=False)
        window = None if self._make_window is None else self._make_window()
        return TenantChain(window, CategoryBaseline(drift, self.prior.factor), self._make_regression)

    def _forget(self, name: str) -> None:
        del self._tenants[name]
        self.prior.withdraw(name)
        self._prompts.drop(name)
        self._models.drop(name)
        self._applications.drop(name)
