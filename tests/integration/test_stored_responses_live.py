"""Kept responses of a whole instance, through the OpenAI SDK."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from tests.support.instance import Up
from tests.support.postgresql import postgresql
from tests.support.real_vllm import real_vllm

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(
    scope="module",
    params=[
        "sqlite",
        pytest.param("postgresql", marks=pytest.mark.slow),
        pytest.param("postgresql and a real vLLM", marks=pytest.mark.vllm),
    ],
)
def up(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    folder = tmp_path_factory.mktemp("responses")
    settings = {"QUARTERMASTER_RESPONSES_KEPT": "on"}
    with ExitStack() as stack:
        if request.param == "sqlite":
            settings["QUARTERMASTER_SIM_REPLICAS"] = "1"
        else:
            settings["QUARTERMASTER_DATABASE_URL"] = stack.enter_context(postgresql(folder))
            settings["QUARTERMASTER_SECRET_KEY"] = secrets.token_urlsafe(48)
        if request.param.endswith("vLLM"):
            settings["ENGINE"] = stack.enter_context(real_vllm(folder))
        instance = Up(folder / "home", **settings).start()
        stack.callback(instance.stop)
        yield instance.wait_ready()


@pytest.fixture(scope="module")
def client(up: Up) -> openai.OpenAI:
    return up.client("standard", timeout=60)


@pytest.fixture(scope="module")
def ask(up: Up) -> dict[str, Any]:
    return {"model": up.demo()["model"], "input": "hello there", "max_output_tokens": 5}


@pytest.mark.parametrize(
    ("name", "advice"), [("input_tokens", "/tokenize"), ("compact", "Nothing is shortened here"), ("compact/", "here")]
)
def test_what_is_no_response_is_told_so_and_not_that_another_method_would_do(
    client: openai.OpenAI, ask: dict[str, Any], name: str, advice: str
) -> None:
    with pytest.raises(openai.NotFoundError, match="is not served here") as refused:
        client.post(f"/responses/{name}", cast_to=object, body=ask)
    assert advice in refused.value.message
    assert "allow" not in refused.value.response.headers


def test_a_response_is_found_listed_continued_and_deleted(client: openai.OpenAI, ask: dict[str, Any]) -> None:
    first = client.responses.create(**ask)
    assert client.responses.retrieve(first.id).to_dict() == first.to_dict()
    with client.responses.stream(**ask | {"input": "and now?"}, previous_response_id=first.id) as stream:
        second = stream.until_done().get_final_response()
    again = client.responses.retrieve(second.id)
    assert (again.output_text, again.previous_response_id) == (second.output_text, first.id)
    newest_first = client.responses.input_items.list(second.id).data
    oldest_first = client.responses.input_items.list(second.id, order="asc", limit=2)
    assert [item.role for item in newest_first] == ["user", "assistant", "user"]  # type: ignore[union-attr]
    assert [item.id for item in oldest_first] == [item.id for item in reversed(newest_first)]  # pages are followed
    with pytest.raises(openai.BadRequestError, match="cannot be cancelled"):
        client.responses.cancel(first.id)
    client.responses.delete(first.id)
    for call in (client.responses.retrieve, client.responses.delete, client.responses.input_items.list):
        with pytest.raises(openai.NotFoundError):
            call(first.id)  # type: ignore[operator]
    assert client.responses.create(**ask, previous_response_id=second.id).previous_response_id == second.id


def test_at_a_path_that_responses_do_not_have_nobody_is_told_that_nothing_is_stored(client: openai.OpenAI) -> None:
    for path in ("/responses/resp_1/other", "/conversations"):
        with pytest.raises(openai.NotFoundError, match="is not served here") as refused:
            client.get(path, cast_to=object)
        assert "Nothing is stored" not in str(refused.value)


def test_another_tenants_key_finds_nothing(up: Up, client: openai.OpenAI, ask: dict[str, Any]) -> None:
    mine, other = client.responses.create(**ask), up.client("premium", timeout=60)
    for call in (other.responses.retrieve, other.responses.delete, other.responses.cancel):
        with pytest.raises(openai.NotFoundError):
            call(mine.id)
    with pytest.raises(openai.BadRequestError, match="not found"):
        other.responses.create(**ask, previous_response_id=mine.id)
    assert client.responses.retrieve(mine.id).id == mine.id


def test_what_is_not_to_be_stored_is_not(client: openai.OpenAI, ask: dict[str, Any]) -> None:
    answer = client.responses.create(**ask, store=False)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(answer.id)


def test_paths_and_queries_that_are_wrong_are_refused(up: Up, client: openai.OpenAI, ask: dict[str, Any]) -> None:
    kept = client.responses.create(**ask).id
    head = {"authorization": f"Bearer {client.api_key}"}
    with httpx.Client(base_url=str(client.base_url), headers=head) as http:
        for method, path, status in [
            ("GET", f"responses/{kept}?stream=true", 400), ("GET", f"responses/{kept}?include[]=x", 400),
            ("GET", f"responses/{kept}/input_items?limit=0", 400),
            ("GET", f"responses/{kept}/input_items?after=x", 400), ("PUT", f"responses/{kept}", 405),
            ("GET", f"responses/{kept}/else", 404), ("GET", "responses/%00", 404), ("GET", "responses/", 404),
            ("HEAD", f"responses/{kept}", 200),
        ]:  # fmt: skip
            assert http.request(method, path).status_code == status, (method, path)
