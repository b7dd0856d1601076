"""The probe of engines that generate nothing: they embed, classify or score."""

from __future__ import annotations

import httpx
import pytest

from scheduling.engines.kinds import kinds, make_client

VECTOR = {"data": [{"index": 0, "embedding": [0.5]}]}
CLASS = {"data": [{"index": 0, "label": "LABEL_0"}]}
SCORE = {"data": [{"index": 0, "score": 0.5}]}


async def probed(kind: str, answers: dict[str, tuple[int, object]]):
    """The probe's outcome, and the paths it asked; what is not in ``answers`` is a 404."""
    paths: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        paths.append(request.url.path)
        status, body = answers.get(request.url.path, (404, {"detail": "Not Found"}))
        return httpx.Response(status, json=body)

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        return await make_client("http://engine", http=http, model="m", kind=kind).probe(), paths


@pytest.mark.parametrize("kind", sorted(kinds()))
@pytest.mark.parametrize("refusal", [400, 404, 405, 501])
@pytest.mark.parametrize(
    ("path", "body"),
    [("/v1/embeddings", VECTOR), ("/classify", CLASS), ("/score", SCORE)],
    ids=["embed", "class", "score"],
)
async def test_what_it_does_instead_proves_that_it_works(kind: str, refusal: int, path: str, body: object) -> None:
    probe, _ = await probed(kind, {"/v1/completions": (refusal, {}), path: (200, body)})
    assert probe.ok
    assert "answer without tokens" in probe.why


@pytest.mark.parametrize("kind", sorted(kinds()))
@pytest.mark.parametrize("status", [401, 429, 500, 503])
async def test_one_that_fails_to_generate_is_not_asked_for_anything_else(kind: str, status: int) -> None:
    probe, paths = await probed(kind, {"/v1/completions": (status, {}), "/v1/embeddings": (200, VECTOR)})
    assert not probe.ok
    assert paths == ["/v1/completions"]


@pytest.mark.parametrize("body", [{}, {"data": []}, [], {"data": "x"}])
async def test_an_answer_without_a_vector_proves_nothing(body: object) -> None:
    probe, _ = await probed("vllm", {"/v1/embeddings": (200, body), "/classify": (200, body), "/score": (200, body)})
    assert not probe.ok
    assert "404" in probe.why
