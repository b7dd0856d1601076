"""How much of an answer's length does its prompt hold? Learners that are allowed what no pool has: all answers to all
other prompts, later ones included, as many inputs and as much time as they like.

Each prompt is predicted by what was learned from the other four fifths of the prompts (the same prompt, asked of
another model, is in the same fifth). Two learners: a ridge on thousands of hashed words and pairs of words, and a
forest on the product's own inputs. For each application that one, their mean or the application's mean counts that is
the nearest in hindsight. So what is left between this and known lengths no predictor of this kind finds in the prompt;
a model of language may find more.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from math import exp
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.contracts import Prediction, ascending
from scheduling.core.estimate.distribution import distribution
from scheduling.estimation.evaluation.methods import Case, Predicted
from scheduling.estimation.evaluation.metrics import LEVELS
from scheduling.estimation.regression import inputs

NAME = "ceiling: the other prompts' answers, in hindsight"
FOLDS = 5
WORDS = 4096  # places that words and pairs of words are hashed to
LOOKED_AT = 400  # words of a prompt
RIDGES = (0.3, 1.0, 3.0, 10.0)
TREES, LEAF = 200, 3
_WORD = re.compile(r"[a-z0-9]+")

Array = NDArray[np.float64]


class Ceiling:
    """A method that has seen the answers to all other prompts of ``cases``."""

    name = NAME

    def __init__(self, cases: Sequence[Case]) -> None:
        actual = np.log([max(1.0, float(case.example.output_tokens)) for case in cases])
        own = guesses(cases)
        self._said: dict[int, Prediction] = {}
        for members in _groups(cases).values():
            best = min(own, key=lambda guess: float(np.mean((actual[members] - guess[members]) ** 2)))
            ratios = [(exp(actual[n] - best[n]), False, 1.0) for n in members]
            shape = distribution(ratios, NAME, float(len(ratios)))
            for n in members:
                scaled = [max(1.0, exp(best[n]) * ratio) for ratio in shape.lengths]
                lengths, probabilities = ascending(scaled, shape.probabilities)
                mean = sum(length * share for length, share in zip(lengths, probabilities, strict=True))
                prediction = Prediction(lengths, probabilities, NAME, mean, shape.support)
                self._said[id(cases[n].example)] = prediction

    def expect(self, case: Case) -> Prediction:
        return self._said[id(case.example)]

    def say(self, case: Case) -> Predicted:
        prediction = self.expect(case)
        return prediction.mean, tuple(prediction.quantile(level) for level in LEVELS)

    def learn(self, case: Case) -> None:
        return None


def fold_of(prompt: str) -> int:
    """The fifth that a prompt is in: the same for each of its answers."""
    return hashlib.sha256(prompt.encode()).digest()[0] % FOLDS


def guesses(cases: Sequence[Case]) -> list[Array]:
    """What each learner says of the logarithm of each length, and first the application's mean: none has seen an answer
    to the prompt."""
    actual = np.log([max(1.0, float(case.example.output_tokens)) for case in cases])
    folds, groups = np.array([fold_of(case.example.prompt) for case in cases]), _groups(cases)
    rows = [inputs(case.facts.embedding, case.facts.features) for case in cases]
    member = _members(len(cases), groups)
    from skopt.learning import ExtraTreesRegressor  # a second of a core: only who asks pays

    features = np.column_stack([np.array(rows), member, [case.facts.input_tokens for case in cases]])
    words = np.column_stack([_words(cases), 0.3 * member])
    alike = words @ words.T
    means = np.full(len(cases), float(actual.mean()))
    ridge, forest = {value: np.zeros(len(cases)) for value in RIDGES}, np.zeros(len(cases))
    for fold in range(FOLDS):
        test, train = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        if not len(test) or not len(train):
            continue
        level = np.full(len(cases), actual[train].mean())
        for members in groups.values():
            learned = [n for n in members if folds[n] != fold]
            if learned:
                level[members] = actual[learned].mean()
        means[test] = level[test]
        rest = (actual - level)[train]
        for value in RIDGES:
            weights = np.linalg.solve(alike[np.ix_(train, train)] + value * np.eye(len(train)), rest)
            ridge[value][test] = alike[np.ix_(test, train)] @ weights
        trees = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, max_features=0.5, random_state=1, n_jobs=1)
        forest[test] = trees.fit(features[train], rest).predict(features[test])
    added = [*ridge.values(), forest]
    return [means, *(means + each for each in added), means + np.mean(added, axis=0)]


def _groups(cases: Sequence[Case]) -> dict[tuple[str, str], list[int]]:
    """The prompts of each model and application."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for number, case in enumerate(cases):
        groups[case.example.model, case.facts.application].append(number)
    return groups


def _members(count: int, groups: dict[tuple[str, str], list[int]]) -> Array:
    """One column for each application: 1 for its prompts."""
    columns = np.zeros((count, len(groups)))
    for column, members in enumerate(groups.values()):
        columns[members, column] = 1.0
    return columns


def _words(cases: Sequence[Case]) -> Array:
    """Words and pairs of words of each prompt, hashed; of length 1 together."""
    counts = np.zeros((len(cases), WORDS))
    for row, case in enumerate(cases):
        words = _WORD.findall(case.example.prompt.lower())[:LOOKED_AT]
        for text in {*words, *(f"{a} {b}" for a, b in pairwise(words))}:
            counts[row, crc32(text.encode()) % WORDS] += 1.0
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    return np.asarray(counts / np.maximum(1.0, lengths))
