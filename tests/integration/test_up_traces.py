"""An instance as `make up` starts it, with traces on: web process, Celery worker, simulated engines, a collector."""

from __future__ import annotations

from tests.instance import Up
from tests.otlp_receiver import plain, receiving

CANARY = "xylophone-4711"


def test_a_request_to_an_instance_arrives_at_the_collector(tmp_path):
    with receiving() as receiver:
        up = Up(
            tmp_path / "home", QUARTERMASTER_TRACES="on", OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_BSP_SCHEDULE_DELAY="100", OTEL_SERVICE_NAME="llm", OTEL_EXPORTER_OTLP_COMPRESSION="gzip",
        )  # fmt: skip
        try:
            up.start().wait_ready()
            with up.client() as client:
                answer = client.chat.completions.with_raw_response.create(
                    model=up.demo()["model"], messages=[{"role": "user", "content": CANARY}], max_tokens=5, stream=True
                )
                assert list(answer.parse())
            request_id = answer.headers["x-request-id"]
            up.wait(lambda: any(s.name == "end" for s in receiver.spans))
            spans = receiver.of(request_id)
        finally:
            assert up.stop() == 0
    assert {"request", "admit", "dispatch", "first_token", "end"} <= set(spans)
    found = plain(spans["request"].attributes)
    assert found["quartermaster.tier"] == "standard"
    assert found["gen_ai.usage.output_tokens"] == 5
    assert receiver.resources[0]["service.name"] == "llm"
    assert CANARY.encode() not in receiver.raw
