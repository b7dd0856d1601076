"""The bridge of deploy/litellm in a real LiteLLM proxy, in front of a real instance: what its clients meet."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.support.instance import ROOT, Up, until
from tests.support.litellm_world import Proxy
from tests.support.own_environment import installed

pytestmark = [pytest.mark.litellm, pytest.mark.timeout(900)]

MODEL = "llama-3-8b"
HELLO: list[Any] = [{"role": "user", "content": "Hello there, how are you?"}]
LONG: Any = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
TEAMS = {"research": "acme", "support": "globex"}


class Accounts:
    """What the instance's own API says, asked as its administrator."""

    def __init__(self, up: Up) -> None:
        token = self._manage(up, "token", "admin").split()[-1]
        self.http = httpx.Client(base_url=f"{up.url}/api/v1", headers={"authorization": f"Bearer {token}"}, timeout=20)
        self.up = up

    @staticmethod
    def _manage(up: Up, *arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=ROOT, env=up.environ, capture_output=True, text=True, check=True, timeout=60,
        ).stdout  # fmt: skip

    def limit(self, tenant: str, tier: str, concurrency: int, folder: Path) -> None:
        pool = self.up.demo()["pool"]
        item = {"kind": "TokenEntitlement", "metadata": {"name": f"{tenant}-{pool}"}, "spec": {
            "tenantRef": {"name": tenant}, "poolRef": {"name": pool}, "qos": {"tier": tier},
            "resources": {"concurrency": concurrency},
        }}  # fmt: skip
        paper = folder / f"{tenant}.json"
        paper.write_text(json.dumps({"apiVersion": "quartermaster/v1", "kind": "List", "items": [item]}))
        self._manage(self.up, "apply", "-f", str(paper), "--yes")

    def requests(self, tenant: str) -> list[dict[str, Any]]:
        answer = self.http.get("/requests", params={"tenant": tenant, "limit": 200}, follow_redirects=True)
        return list(answer.raise_for_status().json()["results"])

    def new(self, tenant: str, before: list[dict[str, Any]], count: int = 1) -> list[dict[str, Any]]:
        """The records of a tenant that were not there before, once there are so many."""
        known = {r["request_id"] for r in before}
        return until(
            lambda: (
                found
                if len(found := [r for r in self.requests(tenant) if r["request_id"] not in known]) >= count
                else []
            )
        )

    def running(self) -> int:
        pools = self.http.get("/live", follow_redirects=True).raise_for_status().json()["pools"]
        return sum(int(p["running"]) + int(p["queue"]["depth"]) for p in pools.values())

    def settled(self, tenant: str) -> list[dict[str, Any]]:
        """A tenant's records once nothing runs and none is on its way any more."""
        until(lambda: self.running() == 0)
        found = self.requests(tenant)
        while True:
            time.sleep(2.5)  # the ledger is written once a second
            again = self.requests(tenant)
            if len(again) == len(found):
                return again
            found = again


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    installed("litellm")  # or skip, before anything is started
    up = Up(tmp_path_factory.mktemp("quartermaster") / "home", QUARTERMASTER_SIM_REPLICAS="1")
    up.start()
    try:
        yield up.wait_ready()
    finally:
        up.stop()


@pytest.fixture(scope="module")
def accounts(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Accounts]:
    accounts = Accounts(up)
    accounts.limit("globex", "premium", 1, tmp_path_factory.mktemp("accounts"))
    with accounts.http:
        yield accounts


@pytest.fixture(scope="module")
def proxy(up: Up, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Proxy]:
    keys = up.demo()["keys"]
    elsewhere = up.url.replace("127.0.0.1", "localhost")
    other = f"""
- model_name: elsewhere
  litellm_params: {{model: hosted_vllm/x, api_base: "{elsewhere}/v1", api_key: own, cooldown_time: 0}}

"""
    proxy = Proxy(
        tmp_path_factory.mktemp("litellm"),
        up.url,
        {"QUARTERMASTER_KEY_RESEARCH": keys["premium"], "QUARTERMASTER_KEY_SUPPORT": keys["standard"]},
        other,
    )
    proxy.start(installed("litellm"))
    try:
        yield proxy.wait_ready()
    finally:
        proxy.stop()


def client(proxy: Proxy, key: str, **options: Any) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{proxy.url}/v1", api_key=key, **({"max_retries": 0, "timeout": 60} | options))


def test_two_teams_are_two_tenants_and_each_is_metered_once(proxy: Proxy, accounts: Accounts) -> None:
    before = {tenant: accounts.settled(tenant) for tenant in TEAMS.values()}
    for team, tenant in TEAMS.items():
        with client(proxy, f"sk-{team}") as api:
            raw = api.chat.completions.with_raw_response.create(model=MODEL, messages=HELLO, max_tokens=7)
        usage = raw.parse().usage
        assert usage is not None
        [record] = accounts.new(tenant, before[tenant])
        assert raw.headers["x-quartermaster-request-id"] == record["request_id"]
        assert raw.headers["x-quartermaster-reason"] == record["reason"] == "length"
        assert (record["input_tokens"], record["output_tokens"]) == (usage.prompt_tokens, usage.completion_tokens)
        assert record["output_tokens"] == 7


def test_hints_and_mistakes_of_the_client_arrive(proxy: Proxy) -> None:
    with client(proxy, "sk-research") as api:
        good = {"x-quartermaster-slo-ttft-ms": "800"}
        assert api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, extra_headers=good).choices
        with pytest.raises(openai.BadRequestError, match="<= 1000000"):
            api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, extra_body={"priority": 2_000_000})
        bad = {"x-quartermaster-slo-ttft-ms": "soon"}
        with pytest.raises(openai.BadRequestError) as refused:
            api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, extra_headers=bad)
    assert refused.value.param == "x-quartermaster-slo-ttft-ms"
    assert refused.value.response.headers["x-should-retry"] == "false"
    assert "milliseconds" in refused.value.message


def test_a_stream_is_passed_on_word_by_word_and_accounted(proxy: Proxy, accounts: Accounts) -> None:
    before = accounts.settled("acme")
    with client(proxy, "sk-research") as api:
        stream = api.chat.completions.create(
            model=MODEL, messages=HELLO, max_tokens=20, stream=True, stream_options={"include_usage": True}
        )
        chunks = list(stream)
    assert sum(bool(c.choices and c.choices[0].delta.content) for c in chunks) == 20
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens == 20
    [record] = accounts.new("acme", before)
    assert (record["outcome"], record["streamed"], record["output_tokens"]) == ("completed", True, 20)


@pytest.mark.parametrize("streamed", [False, True])
def test_a_refusal_arrives_with_its_retry_after_and_the_other_team_goes_on(
    proxy: Proxy, accounts: Accounts, streamed: bool
) -> None:
    """Support may run one at a time; its second is refused, again and again, and research does not notice."""
    before = accounts.settled("globex")
    with client(proxy, "sk-support") as support, client(proxy, "sk-research") as research:
        held = support.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **LONG)
        next(iter(held))
        for _ in range(4):
            with pytest.raises(openai.RateLimitError) as refused:
                support.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5, stream=streamed)
        answer = refused.value.response
        assert answer.headers["x-quartermaster-reason"] == "concurrency"
        assert 0 < float(answer.headers["retry-after-ms"]) <= 120_000
        assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert refused.value.type == "rate_limit_error"
        assert "litellm" not in refused.value.message.lower(), "the message is Quartermaster's own"
        assert research.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices
        held.close()
    records = accounts.new("globex", before, 5)
    assert sorted(r["reason"] for r in records) == ["client_left", *["concurrency"] * 4], "nothing is sent twice"


DIALECTS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/responses", {"input": "Hello there", "max_output_tokens": 5}),
    ("/v1/messages", {"messages": HELLO, "max_tokens": 5}),
    ("/v1/completions", {"prompt": "Hello there", "max_tokens": 5}),
]


@pytest.mark.parametrize(("path", "body"), DIALECTS, ids=[path for path, _ in DIALECTS])
def test_other_dialects_are_admitted_and_refused_alike(
    proxy: Proxy, accounts: Accounts, path: str, body: dict[str, Any]
) -> None:
    def ask(team: str) -> httpx.Response:
        headers = {"authorization": f"Bearer sk-{team}"}
        return httpx.post(f"{proxy.url}{path}", json={"model": MODEL, **body}, headers=headers, timeout=60)

    before = accounts.settled("acme")
    assert ask("research").status_code == 200
    [record] = accounts.new("acme", before)
    assert record["output_tokens"] == 5
    with client(proxy, "sk-support") as support, client(proxy, "sk-research") as research:
        held = support.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **LONG)
        next(iter(held))
        for _ in range(3):
            refused = ask("support")
            assert refused.status_code == 429
            assert "in flight" in refused.json()["error"]["message"], "it was Quartermaster who refused"
            if path == "/v1/responses":  # LiteLLM drops an error's headers on the other two
                assert int(refused.headers["retry-after"]) >= 1
        assert research.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices
        held.close()


def test_the_sdk_waits_as_told_and_then_succeeds(proxy: Proxy, accounts: Accounts) -> None:
    before = accounts.settled("globex")
    with client(proxy, "sk-support") as one, client(proxy, "sk-support", max_retries=5) as two:
        held = one.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=60, stream=True)
        next(iter(held))
        assert two.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices
        held.close()
    reasons = [r["reason"] for r in accounts.new("globex", before, 3)]
    assert "concurrency" in reasons


@pytest.mark.parametrize("streamed", [True, False])
def test_who_hangs_up_frees_his_slot_and_pays_for_what_he_got(proxy: Proxy, accounts: Accounts, streamed: bool) -> None:
    before = accounts.settled("globex")
    with client(proxy, "sk-support", timeout=None if streamed else 2) as api:
        if streamed:
            stream = api.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **LONG)
            next(iter(stream))
            stream.close()
        else:
            with pytest.raises(openai.APITimeoutError):
                api.chat.completions.create(model=MODEL, messages=HELLO, **LONG)
    [record] = accounts.new("globex", before)
    assert record["reason"] == "client_left"
    assert record["input_tokens"] > 0
    assert record["output_tokens"] < 4000
    assert not streamed or record["output_tokens"] > 0, "what was never sent is not known of an answer in one piece"
    until(lambda: accounts.running() == 0)
    with client(proxy, "sk-support") as api:  # its only slot is free again
        assert api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices


def test_who_is_not_listed_is_refused_whatever_the_alias_says(proxy: Proxy) -> None:
    with client(proxy, "sk-nobody") as api, pytest.raises(openai.PermissionDeniedError) as refused:
        api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert "No Quartermaster key" in refused.value.message


def test_a_key_of_ours_is_sent_to_nobody_else(proxy: Proxy, up: Up) -> None:
    """The same port by another name is another place: neither a team's key nor a client's goes there."""
    with client(proxy, "sk-research") as api, pytest.raises(openai.AuthenticationError) as refused:
        api.chat.completions.create(model="elsewhere", messages=HELLO, max_tokens=5)
    assert refused.value.response.headers["x-quartermaster-reason"] == "no_key", "it was asked with the key `own`"
    with client(proxy, up.demo()["keys"]["batch"]) as api, pytest.raises(openai.PermissionDeniedError):
        api.chat.completions.create(model="elsewhere", messages=HELLO, max_tokens=5)


def test_clients_may_come_with_quartermaster_keys(proxy: Proxy, accounts: Accounts, up: Up) -> None:
    tenant = "initech"
    before = accounts.settled(tenant)
    with client(proxy, up.demo()["keys"]["batch"]) as api:
        assert api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices
    assert accounts.new(tenant, before)
    with client(proxy, up.demo()["keys"]["batch"][:-3] + "xyz") as api, pytest.raises(openai.AuthenticationError):
        api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    secret = up.demo()["keys"]["batch"].partition(".")[2]
    assert secret not in proxy.output.read_text(), "keys are never logged"


def test_the_file_of_keys_is_read_again_and_a_bad_one_changes_nothing(proxy: Proxy, accounts: Accounts, up: Up) -> None:
    file = proxy.folder / "config" / "quartermaster_keys.yaml"
    good = file.read_text()

    def allowed() -> bool:
        with client(proxy, "sk-nobody") as api:
            try:
                return bool(api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices)
            except openai.PermissionDeniedError:
                return False

    file.write_text(good.replace("teams:", f"teams:\n  team-nobody: {up.demo()['keys']['batch']}"))
    until(allowed)
    file.write_text("teams: [")
    until(lambda: "still holds" in proxy.output.read_text() or not allowed())
    assert allowed()
    file.write_text(good)
    until(lambda: not allowed())


def test_a_replica_lost_in_the_middle_ends_the_stream_with_an_error(proxy: Proxy, up: Up) -> None:
    with client(proxy, "sk-research") as api:
        stream = api.chat.completions.create(model=MODEL, messages=HELLO, stream=True, **LONG)
        chunks = iter(stream)
        next(chunks)
        os.kill(up.pid("engine-0"), signal.SIGKILL)
        with pytest.raises(openai.APIError) as failed:
            list(chunks)
    assert not isinstance(failed.value, openai.APITimeoutError)
    up.wait_ready()


def test_quartermaster_away_is_a_503_that_says_so(proxy: Proxy, up: Up) -> None:
    """Last in the file and on its own instance's ruins: the others need it alive."""
    up.stop()
    with client(proxy, "sk-research") as api, pytest.raises(openai.InternalServerError) as refused:
        api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5)
    assert refused.value.status_code == 503
    assert "Quartermaster does not answer" in refused.value.message
    assert int(refused.value.response.headers["retry-after"]) > 0
    up.start().wait_ready()
    with client(proxy, "sk-research") as api:
        assert api.chat.completions.create(model=MODEL, messages=HELLO, max_tokens=5).choices
