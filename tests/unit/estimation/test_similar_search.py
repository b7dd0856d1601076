"""What the search among a tenant's past prompts finds, and what of the most similar ones it may miss."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduling.core.estimate.semantic import MIN_SIMILAR, NEIGHBOURS, weights
from scheduling.estimation.embedding import DIMENSIONS, Embedder, Vector
from scheduling.estimation.window import CELL, MIN_ROWS, SEARCHED, RingWindow

EMBEDDER = Embedder()
TASKS = (
    "Write a Python function that {} the {} of a list", "Summarise the minutes of the {} meeting about the {}",
    "Translate this letter about the {} and the {} into German", "You are a {} pirate. Tell me about your {}",
    "Explain in detail how a {} works beside a {}", "Give me ten ideas for a {} party with a {}",
    "Fix the {} bug in this {} query", "Compare the {} economy with that of the {} in a table",
)  # fmt: skip


def units(vectors: Vector) -> Vector:
    found: Vector = vectors / np.sqrt((vectors * vectors).sum(axis=1, keepdims=True))
    return found.astype(np.float32)


def clustered(count: int, clusters: int, seed: int) -> Vector:
    rng = np.random.default_rng(seed)
    centres = units(rng.normal(size=(clusters, DIMENSIONS)))
    spread = rng.normal(size=(count, DIMENSIONS)) * 0.6 / np.sqrt(DIMENSIONS)
    return units(centres[rng.integers(clusters, size=count)] + spread)


def uniform(count: int, seed: int) -> Vector:
    return units(np.random.default_rng(seed).normal(size=(count, DIMENSIONS)))


def asked_for(count: int, seed: int) -> Vector:
    """Prompts of a few tasks in changing words."""
    rng = np.random.default_rng(seed)
    words = ["".join(rng.choice(list("abcdefghiklmnoprstuvw"), rng.integers(3, 9))) for _ in range(400)]
    made = []
    for _ in range(count):
        text = TASKS[rng.integers(len(TASKS))].format(*rng.choice(words, 2)) + " " + " ".join(rng.choice(words, 4))
        vector = EMBEDDER.embed(text)
        assert vector is not None
        made.append(vector)
    return np.array(made)


def filled(vectors: Vector) -> RingWindow:
    window = RingWindow()
    for number, vector in enumerate(vectors):
        window.add(vector, number, False)
    return window


def recall(window: RingWindow, vectors: Vector, asked: Vector) -> tuple[float, float]:
    """Of the most similar that an exact search finds, the share that is found; and what all that is found weighs, of
    what those weigh."""
    found = wanted = 0
    weight_found = weight_wanted = 0.0
    for query in asked:
        products = vectors @ query
        best = [n for n in np.argsort(-products)[:NEIGHBOURS].tolist() if products[n] > MIN_SIMILAR]
        cosines, lengths, _ = window.nearest(query, NEIGHBOURS, MIN_SIMILAR)
        found, wanted = found + len(set(best) & set(lengths.astype(int).tolist())), wanted + len(best)
        weight_found += float(weights(cosines).sum())
        weight_wanted += float(weights(products[best]).sum())
    return found / wanted, weight_found / weight_wanted


class TestFound:
    def test_a_window_of_five_hundred_is_searched_exactly(self) -> None:
        for vectors in (uniform(SEARCHED, 1), clustered(SEARCHED, 5, 2)):
            window = filled(vectors)
            for query in (*uniform(20, 3), *vectors[:20]):
                cosines, lengths, _ = window.nearest(query, NEIGHBOURS)
                products = vectors @ query
                best = np.argsort(-products)[:NEIGHBOURS]
                assert sorted(lengths.tolist()) == sorted(best.astype(float).tolist())
                assert sorted(cosines.tolist()) == pytest.approx(sorted(products[best].tolist()), abs=1e-5)

    def test_what_is_found_is_said_as_it_was_told(self) -> None:
        vectors = clustered(4_000, 30, 4)
        window = RingWindow()
        for number, vector in enumerate(vectors):
            window.add(vector, number, number % 3 == 0)
        for query in vectors[::200]:
            cosines, lengths, cut = window.nearest(query, NEIGHBOURS, MIN_SIMILAR)
            assert len(cosines) == len(lengths) == len(cut) <= NEIGHBOURS
            numbers = lengths.astype(int)
            assert cosines.tolist() == pytest.approx((vectors[numbers] @ query).tolist(), abs=1e-5)
            assert (cut == (numbers % 3 == 0)).all()
            assert (cosines > MIN_SIMILAR).all()

    def test_among_a_thousand_prompts_of_each_task_others_as_similar_are_found_for_those_that_are_missed(self) -> None:
        vectors = asked_for(10_000, 5)
        found, weight = recall(filled(vectors), vectors, asked_for(200, 6))
        assert found > 0.6
        assert weight > 0.95

    def test_among_clusters_nearly_all_of_the_most_similar_are_found(self) -> None:
        vectors = clustered(10_000, 100, 7)
        found, weight = recall(filled(vectors[:9_800]), vectors[:9_800], vectors[9_800:])
        assert found > 0.97
        assert weight > 0.97

    def test_kinds_of_prompts_that_came_up_later_are_found_as_well(self) -> None:
        """Three windows long, in which every kind of prompt is replaced several times."""
        rng = np.random.default_rng(13)
        centres = units(rng.normal(size=(60, DIMENSIONS)))
        vectors = np.empty((30_200, DIMENSIONS), np.float32)
        for number in range(len(vectors)):
            if number % 50 == 0:
                centres[rng.integers(60)] = uniform(1, number)[0]
            vectors[number] = centres[rng.integers(60)] + rng.normal(size=DIMENSIONS) * 0.6 / np.sqrt(DIMENSIONS)
        vectors = units(vectors)
        window = filled(vectors[:30_000])
        kept = np.zeros_like(vectors[:30_000])
        kept[-len(window) :] = vectors[30_000 - len(window) : 30_000]
        found, weight = recall(window, kept, vectors[30_000:])
        assert found > 0.9
        assert weight > 0.9

    def test_the_very_same_prompt_is_always_found(self) -> None:
        for vectors in (uniform(5_000, 8), clustered(5_000, 3, 9)):
            window = filled(vectors)
            for number in range(0, 5_000, 100):
                assert number in window.nearest(vectors[number], 8)[1]

    def test_gateways_that_read_the_same_answers_find_the_same(self) -> None:
        vectors = clustered(3_000, 20, 10)
        one, other = filled(vectors), filled(vectors)
        for query in clustered(50, 20, 11):
            assert [part.tolist() for part in one.nearest(query, 64)] == [
                part.tolist() for part in other.nearest(query, 64)
            ]

    def test_equal_prompts_beyond_a_cell_do_not_stop_it(self) -> None:
        window = RingWindow()
        same = uniform(1, 12)[0]
        for number in range(3 * CELL):
            window.add(same, number, False)
        assert len(window) == 3 * CELL


class TestKept:
    @settings(max_examples=25, deadline=None)
    @given(st.integers(0, 2**32 - 1), st.integers(1, 3_000), st.sampled_from([1, 7, 60]))
    def test_what_left_is_never_found_and_memory_follows_what_is_held(self, seed: int, size: int, groups: int) -> None:
        rng = np.random.default_rng(seed)
        vectors = clustered(4_000, groups, seed)
        window, held = RingWindow(size), deque[int](maxlen=size)
        number = 0
        while number < len(vectors):
            if held and rng.random() < 0.05:
                for _ in range(int(rng.integers(1, len(held) + 1))):
                    window.forget_oldest()
                    held.popleft()
            for _ in range(int(rng.integers(1, 600))):
                if number < len(vectors):
                    window.add(vectors[number], number + 1, False)
                    held.append(number)
                    number += 1
            assert len(window) == len(held)
            assert window.rows <= max(MIN_ROWS, 4 * len(window))
            if held:
                _, lengths, _ = window.nearest(vectors[held[-1]], 2 * size)
                found = {int(length) - 1 for length in lengths}
                assert found <= set(held)
                assert len(found) == len(lengths)
                assert held[-1] in found
                if len(held) <= SEARCHED:
                    assert found == set(held)
