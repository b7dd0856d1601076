"""A learned classifier of prompts: ridge regression, one against the rest, on our own embeddings.

It is trained where it is needed (milliseconds) from the hand-written examples below, so that nothing binary ships; or
from labelled prompts of one's own. How it compares with the rules is measured by ``manage.py estimates evaluate``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from scheduling.core.estimate.category import Category
from scheduling.estimation.embedding import DIMENSIONS, Embedder, Vector

RIDGE = 1.0

EXAMPLES: dict[Category, tuple[str, ...]] = {
    Category.SHORT_QA: (
        "What is the capital of Australia?",
        "Who wrote War and Peace?",
        "When did the Berlin Wall come down?",
        "How many litres are in a gallon?",
        "Is a tomato a fruit?",
        "Where is the nearest time zone border to Spain?",
        "Which planet is the largest?",
        "What does HTTP stand for?",
        "Name three primary colours.",
        "What time is it in Tokyo when it is noon in London?",
        "Can dogs eat grapes?",
        "Give me a synonym for happy.",
        "hi",
        "Thanks, that helps!",
        "What's the boiling point of ethanol?",
        "True or false: sharks are mammals.",
    ),
    Category.SUMMARY: (
        "Summarize the following article in three sentences.",
        "Give me the key points of this meeting transcript.",
        "TL;DR of the text below, please.",
        "Rewrite this paragraph so that it is easier to read.",
        "Translate the following email into German.",
        "Condense this report to its main ideas.",
        "Paraphrase the passage without losing its meaning.",
        "Extract all names and dates from the document below.",
        "Here is a customer review. What is its sentiment and why?",
        "Shorten this product description to fifty words.",
        "Proofread my letter and correct the grammar.",
        "Read the conversation and list what each side agreed to do.",
        "Make this text sound more formal.",
        "What are the main takeaways of the following chapter?",
    ),
    Category.TECHNICAL: (
        "Write a Python function that reverses a linked list.",
        "Why does this SQL query return duplicate rows?",
        "Explain how garbage collection works in Go.",
        "My Docker container exits with code 137. How do I find out why?",
        "Implement binary search in C++ and analyse its complexity.",
        "Convert this JavaScript class to TypeScript.",
        "How do I set up a reverse proxy with TLS for two services?",
        "Fix the bug in the following code.",
        "Create a regex that matches IPv4 addresses.",
        "Prove that the square root of two is irrational.",
        "Write unit tests for this parser.",
        "Solve the differential equation y'' + y = 0 with y(0) = 1.",
        "How can I speed up inserts into a PostgreSQL table?",
        "Write a bash script that renames all files in a folder.",
        "Compare TCP and QUIC with regard to head-of-line blocking.",
    ),
    Category.REPORT: (
        "Write a detailed report on renewable energy in Europe.",
        "Draft a business plan for a small bakery.",
        "Write an essay about the causes of the First World War.",
        "Create a comprehensive marketing strategy for a new phone.",
        "Write a short story about a lighthouse keeper who finds a map.",
        "Prepare a ten-page outline for a course on statistics.",
        "Compose a blog post about working from home, at least 1000 words.",
        "Describe in depth how the human immune system works.",
        "Write a scene in which two old friends meet after twenty years.",
        "Develop a step-by-step guide for moving to another country.",
        "Produce a market analysis of electric bicycles.",
        "Write a speech for the opening of a new library.",
        "Give a thorough comparison of three schools of philosophy.",
        "Draft a project proposal with goals, budget and schedule.",
    ),
}


class LearnedClassifier:
    """Labels of texts, by the largest of one linear score per label."""

    def __init__(self, embedder: Embedder, texts: Sequence[str], labels: Sequence[str]) -> None:
        """Raises ValueError where there are fewer than two labels."""
        self.labels = sorted(set(labels))
        if len(self.labels) < 2:
            raise ValueError("a classifier needs examples of at least two labels")
        self._embedder = embedder
        embedded = [(v, label) for v, label in zip(map(embedder.embed, texts), labels, strict=True) if v is not None]
        inputs = np.hstack([np.array([v for v, _ in embedded]), np.ones((len(embedded), 1), np.float32)])
        targets = np.array([[1.0 if label == name else -1.0 for name in self.labels] for _, label in embedded])
        normal = inputs.T @ inputs + RIDGE * np.eye(DIMENSIONS + 1)
        self._weights: NDArray[np.float64] = np.linalg.solve(normal, inputs.T @ targets)

    def classify(self, vector: Vector) -> str:
        scores = vector @ self._weights[:-1] + self._weights[-1]
        return self.labels[int(scores.argmax())]


def shipped(embedder: Embedder) -> LearnedClassifier:
    """The classifier of DriftSched's four categories, from the examples above."""
    texts = [text for examples in EXAMPLES.values() for text in examples]
    labels = [category.value for category, examples in EXAMPLES.items() for _ in examples]
    return LearnedClassifier(embedder, texts, labels)
