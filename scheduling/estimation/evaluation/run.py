"""Trains every method on one part of the examples, in order, and scores it on the other, of which it is told nothing.

Also measured: what the correction of drift does to the crude estimates and how fast (DriftSched), how the classifiers
compare, and what an estimate costs at a full window.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import Any

from scheduling.core.estimate.category import classify
from scheduling.core.estimate.contracts import PromptFacts
from scheduling.core.estimate.drift import Drift
from scheduling.core.estimate.features import features
from scheduling.estimation.embedding import Embedder
from scheduling.estimation.evaluation.classifier import LearnedClassifier, shipped
from scheduling.estimation.evaluation.data import Example
from scheduling.estimation.evaluation.methods import (
    PRODUCT,
    TOGETHER,
    Case,
    Crude,
    Method,
    PerModel,
    Product,
    all_methods,
)
from scheduling.estimation.evaluation.metrics import Errors, errors

NEWCOMER = (0, 8, 20, 50, 200)  # answers of a tenant that is new to a pool
CONVERGENCE = (0, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)  # answers after which the error is shown
STRETCH = 200  # answers over which an error is averaged there
LONGER = 1.5  # how much longer the answers of the model get half-way of a shift
SHORT_STRETCH = 50
MAX_PER_HALF = 2_000
SHIFTED = ("tokens + EMA", "application history", "semantic history 10k")  # and the product

Row = tuple[float, float, tuple[float, ...]]  # actual, mean, quantiles
Progress = Callable[[str, int, int], None]  # what is done, how much of it, of how much


@dataclass(frozen=True, slots=True)
class Score:
    """One line of the table."""

    name: str
    overall: Errors
    by_file: dict[str, Errors]
    by_tenant: dict[str, Errors]
    by_application: dict[str, Errors]  # "application, model"
    repeated: Errors | None  # on the prompts that occur more than once, where the oracle speaks

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            **asdict(self.overall),
            "by_file": {file: asdict(errors) for file, errors in self.by_file.items()},
            "by_tenant": {tenant: asdict(errors) for tenant, errors in self.by_tenant.items()},
            "by_application": {name: asdict(errors) for name, errors in self.by_application.items()},
            "repeated": None if self.repeated is None else asdict(self.repeated),
        }


def cases_of(examples: Sequence[Example], embedder: Embedder) -> list[Case]:
    return [_case(example, embedder) for example in examples]


def _case(example: Example, embedder: Embedder) -> Case:
    category = classify(example.prompt).value
    facts = PromptFacts(
        example.application, example.tenant, example.model, category, example.input_tokens, None,
        embedder.embed(example.prompt), features(example.prompt, category),
    )  # fmt: skip
    return Case(example, facts, len(example.prompt.split()))


def compare(train: Sequence[Case], test: Sequence[Case], progress: Progress) -> list[Score]:
    """Every method, trained and scored."""
    methods = all_methods([case.example for case in (*train, *test)])
    scores = []
    total = len(methods) * (len(train) + len(test))
    done = 0
    for method in methods:
        for case in train:
            method.learn(case)
            done += 1
            if done % 100 == 0:
                progress(method.name, done, total)
        score = _score(method, test)
        done += len(test)
        progress(method.name, done, total)
        if score is not None:
            scores.append(score)
    return scores


def _score(method: Method, test: Sequence[Case]) -> Score | None:
    of_file: dict[str, list[Row]] = defaultdict(list)
    of_tenant: dict[str, list[Row]] = defaultdict(list)
    of_application: dict[str, list[Row]] = defaultdict(list)
    repeated: list[Row] = []
    occurs = Counter(case.example.prompt for case in test)
    for case in test:
        answer = method.say(case)
        if answer is not None:
            row = (float(case.example.output_tokens), *answer)
            of_file[case.example.file].append(row)
            of_tenant[case.example.tenant].append(row)
            of_application[", ".join(filter(None, (case.example.application, case.example.model)))].append(row)
            if occurs[case.example.prompt] > 1:
                repeated.append(row)
    everything = [row for rows in of_file.values() for row in rows]
    if not everything:
        return None
    return Score(
        method.name,
        _errors(everything),
        {file: _errors(rows) for file, rows in sorted(of_file.items())},
        {tenant: _errors(rows) for tenant, rows in sorted(of_tenant.items())},
        {name: _errors(rows) for name, rows in sorted(of_application.items())},
        _errors(repeated) if repeated else None,
    )


def _errors(rows: list[Row]) -> Errors:
    actual, means, quantiles = zip(*rows, strict=True)
    return errors(actual, means, quantiles)


def drift_in_its_own_units(cases: Sequence[Case]) -> dict[str, Any]:
    """DriftSched's own experiment on these prompts: estimate and answer in the mode's unit, EMA off and on, in order.

    In words the table of bases, which is in tokens, is compared with answers counted in words: the correction then
    undoes a change of unit, before it learns anything about the answers. Only examples with their answers.
    """
    usable = [case for case in cases if case.example.output_words]
    report: dict[str, Any] = {"rows": len(usable)}
    if not usable:
        return report
    for unit in ("words", "tokens"):
        off = {True: [0.0, 0.0], False: [0.0, 0.0]}
        learning, fixed = Drift(), Drift(on=False)
        for case in usable:
            words = unit == "words"
            actual = float(case.example.output_words or 0) if words else float(case.example.output_tokens)
            size = float(case.words) if words else case.facts.input_tokens
            for on, drift in ((True, learning), (False, fixed)):
                error = actual - drift.expected(case.facts.category, size)
                off[on][0] += abs(error)
                off[on][1] += error * error
            learning.learn(case.facts.category, actual)
        n = len(usable)
        mae, rmse = {on: off[on][0] / n for on in off}, {on: (off[on][1] / n) ** 0.5 for on in off}
        report[unit] = {
            "mae_off": mae[False],
            "mae_on": mae[True],
            "mae_change": mae[True] / mae[False] - 1.0,
            "rmse_off": rmse[False],
            "rmse_on": rmse[True],
            "rmse_change": rmse[True] / rmse[False] - 1.0,
            "bias": {category: bias.value for scope, _, category, bias in learning.factors() if scope == "category"},
        }
    return report


def convergence(cases: Sequence[Case]) -> list[dict[str, float]]:
    """Mean absolute error [tokens] of ``tokens + EMA`` and of the product over the answers that follow each count."""
    runs = {m.name: m for m in all_methods([]) if m.name in ("tokens + EMA", PRODUCT)}
    off: dict[str, list[float]] = {name: [] for name in runs}
    for case in cases[: CONVERGENCE[-1] + STRETCH]:
        for name, method in runs.items():
            answer = method.say(case)
            if answer is not None:
                off[name].append(abs(answer[0] - case.example.output_tokens))
            method.learn(case)
    return [
        {"after": after, **{name: _mean(e[after : after + STRETCH]) for name, e in off.items()}}
        for after in CONVERGENCE
        if after < len(cases)
    ]


def newcomers(cases: Sequence[Case]) -> list[dict[str, Any]]:
    """What a tenant's first answers are worth: each tenant in turn comes to a pool that all others have taught, and is
    asked and taught in order. Mean absolute error [tokens] over all tenants, of the answers between two counts."""
    errors: dict[str, list[list[float]]] = {}
    models = sorted({case.example.model for case in cases})
    tenants = sorted({case.facts.tenant for case in cases})
    for name in (TOGETHER, PRODUCT):
        off: list[list[float]] = [[] for _ in NEWCOMER[1:]]
        for model, tenant in product(models, tenants):
            of_model = [case for case in cases if case.example.model == model]
            method = Product(name, together=name == TOGETHER)
            for case in of_model:
                if case.facts.tenant != tenant:
                    method.learn(case)
            own = [case for case in of_model if case.facts.tenant == tenant]
            for number, case in enumerate(own[: NEWCOMER[-1]]):
                off[bisect_right(NEWCOMER, number) - 1].append(abs(method.say(case)[0] - case.example.output_tokens))
                method.learn(case)
        errors[name] = off
    return [
        {"from": low, "to": high, **{name: _mean(off[i]) if off[i] else None for name, off in errors.items()}}
        for i, (low, high) in enumerate(pairwise(NEWCOMER))
    ]


def shift(cases: Sequence[Case]) -> dict[str, Any]:
    """Half-way the prompts change (other labels, or files) and the model too: its answers get ``LONGER`` times as long.

    Mean absolute error [tokens] of the stretches after the change, and after how many answers it is for the first time
    within a fifth of what it is in the end. Without labels or several files only the model changes.
    """
    groups = Counter(case.example.label or case.example.file for case in cases)
    first: set[str] = set()
    for name, _ in groups.most_common():
        if not first or sum(groups[n] for n in first) < len(cases) / 2:
            first.add(name)
    before = [c for c in cases if (c.example.label or c.example.file) in first]
    after = [c for c in cases if (c.example.label or c.example.file) not in first]
    if not after:
        before, after = before[: len(before) // 2], before[len(before) // 2 :]
    before = [_of_one_pool(c, 1.0) for c in before[-MAX_PER_HALF:]]
    longer = [_of_one_pool(c, LONGER) for c in after[:MAX_PER_HALF]]
    report: dict[str, Any] = {"before": len(before), "after": len(longer), "stretch": SHORT_STRETCH, "methods": []}
    for method in all_methods([]):
        if method.name not in SHIFTED and method.name != PRODUCT:
            continue
        off: list[float] = []
        for case in (*before, *longer):
            answer = method.say(case)
            assert answer is not None
            off.append(abs(answer[0] - case.example.output_tokens))
            method.learn(case)
        old, new = off[: len(before)], off[len(before) :]
        stretches = [_mean(new[i : i + SHORT_STRETCH]) for i in range(0, len(new), SHORT_STRETCH)]
        final = _mean(new[-(len(new) // 4 + 1) :])
        recovered = next((i for i, mae in enumerate(stretches) if mae <= 1.2 * final), len(stretches))
        report["methods"].append(
            {
                "name": method.name,
                "mae_before": _mean(old[-(len(old) // 4 + 1) :]),
                "mae_after": stretches[:10],
                "mae_final": final,
                "recovered_after": recovered * SHORT_STRETCH,
            }
        )
    return report


def _of_one_pool(case: Case, longer: float) -> Case:
    """The pool's name stays when its model is replaced, and so does what was learned of it."""
    tokens = max(1, round(longer * case.example.output_tokens))
    return replace(
        case,
        example=replace(case.example, model="", output_tokens=tokens),
        facts=replace(case.facts, model=""),
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def classifiers(train: Sequence[Case], test: Sequence[Case], embedder: Embedder) -> list[dict[str, Any]]:
    """Rules and learned ones: the error that their categories leave to ``tokens + EMA``, and, where files say what
    their prompts are about, how well that can be told (share of test prompts in their category's commonest label)."""
    learned = shipped(embedder)
    kinds: dict[str, Callable[[Case], str]] = {
        "one category for all": lambda case: "summary",
        "rules": lambda case: case.facts.category,
        "learned from the shipped examples": lambda case: _learned(learned, case),
    }
    labels = Counter(case.example.label for case in train if case.example.label)
    common = [label for label, count in labels.most_common(20) if count >= 30]
    if len(common) > 1:
        of = [case for case in train if case.example.label in common]
        own = LearnedClassifier(embedder, [c.example.prompt for c in of], [c.example.label for c in of])
        kinds["learned from the files' labels"] = lambda case: _learned(own, case)
    report = []
    for name, category in kinds.items():
        method = PerModel(name, partial(Crude, words=False, ema=True, category=category))
        for case in train:
            method.learn(case)
        score = _score(method, test)
        assert score is not None
        line: dict[str, Any] = {"name": name, "mae": score.overall.mae, "spearman": score.overall.spearman}
        if len(common) > 1:
            line["label_accuracy"] = _accuracy(
                [(category(c), c.example.label) for c in train if c.example.label in common],
                [(category(c), c.example.label) for c in test if c.example.label in common],
            )
        line["share"] = {
            name: count / len(test) for name, count in sorted(Counter(category(case) for case in test).items())
        }
        report.append(line)
    return report


def _learned(classifier: LearnedClassifier, case: Case) -> str:
    vector = case.facts.embedding
    return classifier.labels[0] if vector is None else classifier.classify(vector)


def _accuracy(train: list[tuple[str, str]], test: list[tuple[str, str]]) -> float | None:
    """Share of test pairs whose label is the one most frequent in training for their category."""
    votes: dict[str, Counter[str]] = defaultdict(Counter)
    for category, label in train:
        votes[category][label] += 1
    if not test:
        return None
    right = sum(bool(votes[c]) and votes[c].most_common(1)[0][0] == label for c, label in test)
    return right / len(test)
