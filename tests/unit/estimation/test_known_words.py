"""What an embedder keeps of the words it saw: no more than it may, and nothing that changes what a text is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from scheduling.core.estimate.features import features
from scheduling.estimation import embedding
from scheduling.estimation.embedding import CHUNK_KEPT, WORDS, WORDS_KEPT, Embedder, Vector, pack


def embedded(embedder: Embedder, text: str) -> Vector:
    vector = embedder.embed(text)
    assert vector is not None
    return vector


class TestKnownWords:
    def test_words_that_were_forgotten_are_learned_again_as_they_were(self) -> None:
        embedder, text = Embedder(), "Write page12 of the report, (briefly) in 300 words: how to sail"
        before, counted = embedder.read(text)
        assert before is not None
        for number in range(0, WORDS_KEPT + 2_000, 100):
            embedder.embed(" ".join(f"w{word}" for word in range(number, number + 100)))
            assert len(embedder._hashes) == len(embedder._rows) <= WORDS_KEPT
        after, again = embedder.read(text)
        assert after is not None
        assert pack(after) == pack(before)
        assert again == counted

    def test_a_text_teaches_no_more_words_than_are_looked_at_of_it(self) -> None:
        embedder = Embedder()
        embedder.embed("".join(map(chr, range(0x4E00, 0x4E00 + 3_000))))
        assert len(embedder._rows) <= WORDS + 1
        embedder.embed(" ".join("".join(map(chr, range(at, at + 400))) for at in range(0x6000, 0x6000 + 3_600, 400)))
        assert len(embedder._rows) <= 3 * WORDS

    def test_what_stands_between_blanks_is_kept_within_a_bound_and_not_where_it_is_long(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(embedding, "CHUNKS_KEPT", 2_000)
        embedder = Embedder()
        embedder.embed("a" * (CHUNK_KEPT + 1))
        assert not embedder._chunks
        most = 0
        for signs in product("?!", repeat=13):
            embedder.embed("".join(signs))
            most = max(most, len(embedder._chunks))
        assert len(embedder._rows) == 2
        assert 1_000 < most <= 2_000

    @pytest.mark.parametrize("text", ["one", "one one one", "to be or not to be", "?", "e2e e2e 2 e", "\u0130\u212a"])
    def test_repeated_words_count_by_their_root_wherever_they_stand(self, text: str) -> None:
        """As the sum over different words, each with its own direction."""
        embedder = Embedder()
        vector, counted = embedder.read(text)
        other, _ = Embedder().read(text)
        assert vector is not None
        assert other is not None
        assert np.array_equal(vector, other)
        assert float(vector @ vector) == pytest.approx(1.0, abs=1e-5)
        assert features(text, "", counted) == features(text, "")

    @pytest.mark.parametrize(
        ("text", "first"),
        [
            ("Explain in depth how a heat pump works, in 300 words or 2 pages", "e0d9f4e7ba0a1beb2e2025ff350bd1ca"),
            ("to be or not to be, that is the question", "f8d5132ef030fad92427fdc5e41d1cfa"),
            ("def f():\n    return 1\n```\nWhy does this fail? " * 40, "fbf30bfde6e02ff3194831d950e2cd1f"),
        ],
    )
    def test_an_embedding_is_the_same_in_every_release(self, text: str, first: str) -> None:
        """Gateways of two releases compare prompts that either of them embedded. A rounding apart is near enough."""
        wanted = np.frombuffer(bytes.fromhex(first), np.int8).astype(int)
        found = np.frombuffer(pack(embedded(Embedder(), text))[:16], np.int8).astype(int)
        assert np.abs(found - wanted).max() <= 1
