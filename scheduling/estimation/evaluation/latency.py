"""What does an estimate cost? Every step on its own, and all together, at a full window; one thread.

By the thread's own CPU clock: that is the latency on a core of one's own, and means something on a busy machine too.
The whole is also given by the wall clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from scheduling.core.estimate.category import classify
from scheduling.core.estimate.chain import Chain
from scheduling.core.estimate.contracts import PromptFacts
from scheduling.core.estimate.features import features
from scheduling.core.estimate.semantic import NEIGHBOURS, WINDOW
from scheduling.core.estimate.tokens import raw_tokens
from scheduling.core.policies.gittins_index import CostDistribution, cost_distribution
from scheduling.estimation.embedding import DIMENSIONS, Embedder
from scheduling.estimation.evaluation.methods import Case
from scheduling.estimation.regression import RidgeRegression
from scheduling.estimation.window import RingWindow

MAX_MEASURED = 2_000
WARM = 50


def measure(train: Sequence[Case], test: Sequence[Case], count: Callable[[str], float] | None) -> dict[str, Any]:
    """Milliseconds at the median and the 99th percentile. ``count``: a tokenizer; None: words and bytes.

    The window of one tenant is filled to 10,000 with the training prompts over and over, each a little different.
    """
    windows: list[RingWindow] = []

    def make_window() -> RingWindow:
        windows.append(RingWindow())
        return windows[-1]

    embedder = Embedder()
    chain = Chain(make_window, RidgeRegression)
    rng = np.random.default_rng(1)
    usable = [case for case in train if case.facts.embedding is not None]
    for i in range(WINDOW if usable else 0):
        case = usable[i % len(usable)]
        vector = case.facts.embedding + rng.normal(0.0, 0.02, DIMENSIONS).astype(np.float32)
        vector /= np.sqrt(vector @ vector)
        facts = PromptFacts(
            case.facts.application, "", case.facts.model, case.facts.category, case.facts.input_tokens, None, vector,
            case.facts.features,
        )  # fmt: skip
        chain.observe(facts, case.example.output_tokens, source="similar", raw_p90=float(case.example.output_tokens))
        chain.fit()
    window = windows[-1]  # of the one tenant that holds all
    tokenise = count or raw_tokens
    names = ("tokenise", "classify", "features", "embed", "search", "predict", "cost", "gittins", "total")
    seconds: dict[str, list[float]] = {name: [] for name in names}
    now = time.thread_time
    wall: list[float] = []
    prompts = [case.example for case in (*test, *train)][:MAX_MEASURED]
    warm = prompts[:WARM]
    for number, example in enumerate((*warm, *prompts)):
        began = time.perf_counter()
        start = now()
        tokens = tokenise(example.prompt)
        tokenised = now()
        category = classify(example.prompt).value
        classified = now()
        vector_or_none, counted = embedder.read(example.prompt)
        embedded = now()
        signs = features(example.prompt, category, counted)
        looked_at = now()
        facts = PromptFacts(example.application, "", example.model, category, tokens, 4096, vector_or_none, signs)
        forecast = chain.predict(facts)
        predicted = now()
        lengths = forecast.prediction.lengths, forecast.prediction.probabilities
        costs = cost_distribution(round(tokens), CostDistribution(*lengths))
        costed = now()
        costs.index()
        end = now()
        ended = time.perf_counter()
        if vector_or_none is not None:
            window.nearest(vector_or_none, NEIGHBOURS)
        searched = now()
        if number < len(warm):
            continue
        search = searched - end
        wall.append(ended - began)
        for name, value in zip(
            names,
            (
                tokenised - start, classified - tokenised, looked_at - embedded, embedded - classified, search,
                max(0.0, predicted - looked_at - search), costed - predicted, end - costed, end - start,
            ),
            strict=True,
        ):  # fmt: skip
            seconds[name].append(value)
    report: dict[str, Any] = {}
    for name, values in seconds.items():
        report[f"{name}_p50"], report[f"{name}_p99"] = (float(v) * 1e3 for v in np.quantile(values, (0.5, 0.99)))
    report["wall_p50"], report["wall_p99"] = (float(v) * 1e3 for v in np.quantile(wall, (0.5, 0.99)))
    report["measured"] = len(prompts)
    report["window"] = len(window)
    report["tokenizer"] = count is not None
    return report
