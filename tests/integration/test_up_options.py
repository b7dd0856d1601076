"""An instance as `make up` starts it, with what is off by default: traces, and answers kept for Idempotency-Key."""

from __future__ import annotations

import pytest

from tests.support.instance import Up
from tests.support.otlp_receiver import Receiver, plain, receiving

CANARY = "xylophone-4711"
HELLO = [{"role": "user", "content": CANARY}]


@pytest.fixture(scope="module")
def collector():
    with receiving() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory, collector: Receiver):
    instance = Up(
        tmp_path_factory.mktemp("options") / "home", QUARTERMASTER_TRACES="on",
        OTEL_EXPORTER_OTLP_ENDPOINT=collector.url, OTEL_BSP_SCHEDULE_DELAY="100", OTEL_SERVICE_NAME="llm",
        OTEL_EXPORTER_OTLP_COMPRESSION="gzip", OTEL_EXPORTER_OTLP_TIMEOUT="30", QUARTERMASTER_IDEMPOTENCY_ANSWERS="on",
    )  # fmt: skip
    try:
        yield instance.start().wait_ready()
    finally:
        assert instance.stop() == 0


def test_a_request_to_an_instance_arrives_at_the_collector(up: Up, collector: Receiver):
    with up.client() as client:
        answer = client.chat.completions.with_raw_response.create(
            model=up.demo()["model"], messages=HELLO, max_tokens=5, stream=True
        )
        assert list(answer.parse())
    request_id = answer.headers["x-request-id"]

    def there() -> bool:
        return any(plain(s.attributes).get("quartermaster.request_id") == request_id for s in collector.spans)

    up.wait(there)
    spans = collector.of(request_id)
    assert {"request", "admit", "dispatch", "first_token", "end"} <= set(spans)
    found = plain(spans["request"].attributes)
    assert found["quartermaster.tier"] == "standard"
    assert found["gen_ai.usage.output_tokens"] == 5
    assert collector.resources[0]["service.name"] == "llm"
    assert CANARY.encode() not in collector.raw


def test_a_kept_answer_is_given_again_by_an_instance(up: Up):
    with up.client(tier="premium") as client:
        first, again = (
            client.chat.completions.with_raw_response.create(
                model=up.demo()["model"], messages=HELLO, max_tokens=5, extra_headers={"Idempotency-Key": "order-7"}
            )
            for _ in range(2)
        )
    assert first.text == again.text
    assert "idempotent-replayed" not in first.headers
    assert again.headers["idempotent-replayed"] == "true"
    assert again.headers["x-quartermaster-original-request"] == first.headers["x-request-id"]
