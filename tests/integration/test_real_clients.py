"""Clients that teams already use, unchanged, against a gateway: Anthropic's SDK, LangChain and LiteLLM's SDK, in an
environment of their own. OpenAI's SDK is a dependency of the tests and speaks in most of them; LiteLLM's proxy has its
own tests."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.gateway_world import World
from tests.support.own_environment import installed
from tests.support.simulated_world import simulated_world

pytestmark = [pytest.mark.clients, pytest.mark.timeout(600)]

ANTHROPIC = """
import json, sys
import anthropic

url, key = sys.argv[1:]
client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)
hello = [{"role": "user", "content": "hello there"}]
whole = client.messages.create(model="demo", max_tokens=9, messages=hello, system="be brief")
with client.messages.stream(model="demo", max_tokens=9, messages=hello) as stream:
    text = "".join(stream.text_stream)
    final = stream.get_final_message()
counted = client.messages.count_tokens(model="demo", messages=hello)
listed = [(one.id, one.type, one.display_name, one.max_input_tokens) for one in client.models.list(limit=1)]
only = client.models.retrieve("demo")
said = {
    "listed": listed,
    "only": [only.id, only.created_at.year > 2000],
    "whole": [whole.type, whole.model, whole.stop_reason, whole.usage.output_tokens],
    "stream": [len(text.split()), final.stop_reason, final.usage.output_tokens],
    "counted": counted.input_tokens,
}
for name, call in {
    "wrong": lambda: client.messages.create(model="other", max_tokens=9, messages=hello),
    "url": lambda: client.messages.create(model="demo", max_tokens=9, messages=[{"role": "user", "content": [
        {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:9/a.png"}}]}]),
    "key": lambda: anthropic.Anthropic(base_url=url, api_key="x", max_retries=0).messages.create(
        model="demo", max_tokens=9, messages=hello),
    "model": lambda: client.models.retrieve("other"),
    "batches": lambda: client.messages.batches.list(),
}.items():
    try:
        call()
    except anthropic.APIStatusError as error:
        said[name] = [type(error).__name__, error.status_code, error.body["error"]["type"]]
print(json.dumps(said))
"""

LANGCHAIN = """
import json, sys
from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings

url, key = sys.argv[1:]
common = {"base_url": url + "/v1", "api_key": key, "model": "demo", "max_retries": 0}
chat = ChatOpenAI(**common, max_tokens=9, n=2)
both = chat.generate([[HumanMessage("hello there")]])
pieces = [piece for piece in ChatOpenAI(**common, max_tokens=9, stream_usage=True).stream("hello there")]
responses = ChatOpenAI(**common, max_tokens=9, use_responses_api=True, store=False).invoke("hello there")
batch = OpenAI(**common, max_tokens=5).generate(["one two", "three four five"])
vectors = OpenAIEmbeddings(**common, check_embedding_ctx_length=False).embed_documents(["one two", "three"])
try:
    refused = ChatOpenAI(**common, max_tokens=9).invoke("a " * 50_000).text
except Exception as error:
    refused = type(error).__name__
print(json.dumps({
    "both": len(both.generations[0]),
    "usage": both.llm_output["token_usage"]["completion_tokens"],
    "stream": [sum(len(piece.content.split()) for piece in pieces), pieces[-1].usage_metadata or
               next(p.usage_metadata for p in reversed(pieces) if p.usage_metadata)],
    "responses": [responses.usage_metadata["output_tokens"], len(responses.text.split())],
    "batch": [len(one) for one in batch.generations],
    "vectors": [len(vector) for vector in vectors],
    "long": refused,
}))
"""

LITELLM = """
import json, sys
import litellm

url, key = sys.argv[1:]
common = {"api_key": key, "max_retries": 0, "num_retries": 0}
openai = {**common, "model": "openai/demo", "api_base": url + "/v1"}
hello = [{"role": "user", "content": "hello there"}]
whole = litellm.completion(**openai, messages=hello, max_tokens=9, n=2)
pieces = list(litellm.completion(
    **openai, messages=hello, max_tokens=9, stream=True, stream_options={"include_usage": True}))
text = litellm.text_completion(**{**openai, "model": "text-completion-openai/demo"}, prompt="hello there", max_tokens=5)
vectors = litellm.embedding(**openai, input=["one two", "three"])
ranked = litellm.rerank(
    model="hosted_vllm/demo", api_base=url, api_key=key, query="one", documents=["one two", "three"])
response = litellm.responses(**openai, input="hello there", max_output_tokens=9, store=False)
events = [event.type for event in litellm.responses(
    **openai, input="hello there", max_output_tokens=9, store=False, stream=True)]
anthropic = {**common, "model": "anthropic/demo", "api_base": url}
message = litellm.completion(**anthropic, messages=hello, max_tokens=9)
told = list(litellm.completion(**anthropic, messages=hello, max_tokens=9, stream=True))
words = lambda chunks: sum(len((c.choices[0].delta.content or "").split()) for c in chunks if c.choices)
said = {
    "whole": [len(whole.choices), whole.choices[0].finish_reason, whole.usage.completion_tokens],
    "stream": [words(pieces), next(p.usage.completion_tokens for p in reversed(pieces) if getattr(p, "usage", None))],
    "text": [len(text.choices[0].text.split()), text.usage.completion_tokens],
    "vectors": [len(one["embedding"]) for one in vectors.data],
    "ranked": len(ranked.results),
    "response": [response.status, response.usage.output_tokens],
    "events": [str(getattr(events[n], "value", events[n])) for n in (0, -1)],
    "message": [message.choices[0].finish_reason, message.usage.completion_tokens],
    "told": [words(told), told[-1].choices[0].finish_reason],
}
for name, call in {
    "model": lambda: litellm.completion(**{**openai, "model": "openai/other"}, messages=hello),
    "key": lambda: litellm.completion(**{**openai, "api_key": "x"}, messages=hello),
    "field": lambda: litellm.completion(**openai, messages=hello, max_tokens=10**6),
    "long": lambda: litellm.completion(**openai, messages=[{"role": "user", "content": "a " * 50_000}]),
    "anthropic model": lambda: litellm.completion(**{**anthropic, "model": "anthropic/other"}, messages=hello),
    "anthropic key": lambda: litellm.completion(**{**anthropic, "api_key": "x"}, messages=hello),
}.items():
    try:
        call()
    except Exception as error:
        said[name] = [type(error).__name__, getattr(error, "status_code", None)]
print(json.dumps(said))
"""


@pytest.fixture
async def world(redis_url: str, pool_id: str) -> AsyncIterator[World]:
    async with simulated_world(redis_url, pool_id) as (made, _):
        yield made


async def run(script: str, world: World, folder: Path) -> dict[str, Any]:
    """What a script prints, run by the clients' own Python."""
    python = await asyncio.to_thread(installed)
    file = folder / "script.py"
    file.write_text(script)
    process = await asyncio.create_subprocess_exec(
        str(python), str(file), world.base, world.key, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={
            "PATH": "/usr/bin:/bin", "HOME": str(folder), "LANGSMITH_TRACING": "false",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        },
    )  # fmt: skip
    out, err = await process.communicate()
    assert process.returncode == 0, err.decode()[-3000:]
    print(out.decode())
    return dict(json.loads(out.splitlines()[-1]))  # LiteLLM prints advice above it


async def test_anthropics_sdk(world: World, tmp_path: Path) -> None:
    said = await run(ANTHROPIC, world, tmp_path)
    assert said == {
        "whole": ["message", "demo", "max_tokens", 9],
        "stream": [9, "max_tokens", 9],
        "counted": 6,
        "wrong": ["NotFoundError", 404, "not_found_error"],
        "url": ["BadRequestError", 400, "invalid_request_error"],
        "key": ["AuthenticationError", 401, "authentication_error"],
        "model": ["NotFoundError", 404, "not_found_error"],
        "batches": ["NotFoundError", 404, "not_found_error"],
        "listed": [[name, "model", name, 8192] for name in ("demo", "default")],
        "only": ["demo", True],
    }
    records = await world.ledger_of(4)
    assert [record.output_tokens for record in records if record.outcome == "completed"] == [9, 9]
    await world.settled()


async def test_langchain(world: World, tmp_path: Path) -> None:
    said = await run(LANGCHAIN, world, tmp_path)
    usage = said["stream"].pop()
    assert (usage["input_tokens"], usage["output_tokens"]) == (6, 9)
    assert said == {
        "both": 2, "usage": 18, "stream": [9], "responses": [9, 9], "batch": [1, 1], "vectors": [64, 64],
        "long": "OpenAIContextOverflowError",
    }  # fmt: skip
    records = await world.ledger_of(6)
    assert Counter(record.reason for record in records if record.outcome != "completed") == {"too_long": 1}
    await world.settled()


async def test_litellms_sdk(world: World, tmp_path: Path) -> None:
    said = await run(LITELLM, world, tmp_path)
    assert said == {
        "whole": [2, "length", 18],
        "stream": [9, 9],
        "text": [5, 5],
        "vectors": [64, 64],
        "ranked": 2,
        "response": ["incomplete", 16],  # OpenAI takes no less than 16, so LiteLLM sends no less
        "events": ["response.created", "response.completed"],
        "message": ["length", 9],
        "told": [9, "length"],
        "model": ["NotFoundError", 404],
        "key": ["AuthenticationError", 401],
        "field": ["BadRequestError", 400],
        "long": ["ContextWindowExceededError", 400],  # what its fallbacks to a longer context go by
        "anthropic model": ["NotFoundError", 404],
        "anthropic key": ["AuthenticationError", 401],
    }
    records = await world.ledger_of(13)
    assert Counter(record.outcome for record in records) == {"completed": 9, "refused": 4}
    await world.settled()
