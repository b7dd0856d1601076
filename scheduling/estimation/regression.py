"""The logarithm of an answer's length as a linear function of its prompt: ridge regression, learned while running.

Inputs are a prompt's embedding and its signs (``scheduling.core.estimate.features``), 149 numbers. What is kept is the
matrix of their products, some 90 KB, not the prompts; an answer adds one product and old ones fade. The weights are
found anew every few answers, by LAPACK in a thread; a prediction is one product.
"""

from __future__ import annotations

from math import log

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.features import COUNT, SCALE
from scheduling.estimation.embedding import DIMENSIONS, Vector

WIDTH = DIMENSIONS + COUNT + 1  # the last is 1: the level
EMBEDDING_WEIGHT = 0.7  # of a prompt's direction beside its signs, before anything is learned
RIDGE = 5.0  # answers that "nothing matters" counts for
LEVEL_RIDGE = 0.01  # the level itself is hardly held back
KEEP = 1.0 - 1.0 / 4_000  # what an answer leaves of those before it
FIRST_FIT = 16  # answers before which nothing is said
FIT_AFTER = 32  # new answers from which weights are found anew; while there are few, sooner
BATCH = 64  # answers added at once


class RidgeRegression:
    """Implements ``scheduling.core.estimate.regression.Regression``. One owner, but ``fit`` may run in another thread
    while ``predict`` is asked (not ``add``)."""

    def __init__(self) -> None:
        self._products: Vector | None = None  # memory only for those that have answers enough
        self._moments: NDArray[np.float64] = np.zeros(WIDTH)
        self._pending: list[tuple[Vector, float]] = []
        self._answers = 0
        self._unfitted = 0
        self._weights: tuple[Vector, Vector, float] | None = None  # of an embedding, of a sign's byte, the level

    @property
    def due(self) -> bool:
        """Whether weights should be found anew."""
        return self._answers >= FIRST_FIT and self._unfitted >= min(FIT_AFTER, max(4, self._answers // 8))

    def predict(self, embedding: Vector, features: bytes) -> float | None:
        """The natural logarithm of the length [tokens]; None before the first fit."""
        if self._weights is None:
            return None
        of_embedding, of_signs, level = self._weights
        signs = np.frombuffer(features, np.uint8).astype(np.float32)
        return float(of_embedding.dot(embedding)) + float(of_signs.dot(signs)) + level

    def add(self, embedding: Vector, features: bytes, length: float) -> None:
        """An answer of ``length`` tokens, at least 1."""
        self._pending.append((inputs(embedding, features), log(length)))
        self._answers += 1
        self._unfitted += 1
        if len(self._pending) >= BATCH:
            self._take_in()

    def fit(self) -> None:
        """Finds the weights anew."""
        self._take_in()
        if self._products is None:
            return
        self._unfitted = 0
        penalty = np.full(WIDTH, RIDGE)
        penalty[-1] = LEVEL_RIDGE
        found = np.linalg.solve(self._products.astype(np.float64) + np.diag(penalty), self._moments)
        self._weights = (
            (found[:DIMENSIONS] * EMBEDDING_WEIGHT).astype(np.float32),
            (found[DIMENSIONS:-1] / SCALE).astype(np.float32),
            float(found[-1]),
        )

    def _take_in(self) -> None:
        if not self._pending:
            return
        rows = np.array([row for row, _ in self._pending])
        targets = np.array([target for _, target in self._pending])
        fading = (KEEP ** np.arange(len(rows) - 1, -1, -1)).astype(np.float32)
        kept = np.float32(KEEP ** len(rows))
        weighted = rows.T * fading
        if self._products is None:
            self._products = np.zeros((WIDTH, WIDTH), np.float32)
        self._products = kept * self._products + weighted @ rows
        self._moments = kept * self._moments + weighted @ targets
        self._pending = []


def inputs(embedding: Vector, features: bytes) -> Vector:
    """What a prompt is to the regression. Raises ValueError for features of another size."""
    if len(features) != COUNT:
        raise ValueError(f"a prompt has {COUNT} signs, not {len(features)}")
    row: Vector = np.empty(WIDTH, np.float32)
    np.multiply(embedding, EMBEDDING_WEIGHT, out=row[:DIMENSIONS])
    np.multiply(np.frombuffer(features, np.uint8), 1.0 / SCALE, out=row[DIMENSIONS:-1], casting="unsafe")
    row[-1] = 1.0
    return row
