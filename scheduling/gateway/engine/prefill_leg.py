"""What a prefill replica is asked, and what its answer says: vLLM's ``kv_transfer_params``.

The prompt is computed where it is asked for one token with ``do_remote_decode``. The answer's ``kv_transfer_params``
say where its KV cache is, and go with the request to the replica that writes the answer, unread: their form is the
connector's. Connectors whose instances share a store say nothing; then the request goes as it is. Source: the proxies
of vLLM's documentation for NixlConnector.
"""

from __future__ import annotations

import msgspec

from scheduling.core.types import BackendSpec, Phase
from scheduling.gateway.answers.answer_types import Broken
from scheduling.gateway.stages import Estimated

MAX_PREFILL_BYTES = 4 * 1024 * 1024  # of such an answer: it names each block of the KV cache
PATHS = frozenset({  # whose bodies and answers have the field in vLLM
    "/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
})  # fmt: skip
_NOT_FOR_ONE_TOKEN = ("stream_options", "min_tokens", "max_completion_tokens", "logprobs", "top_logprobs", "include")
_ONE = msgspec.Raw(b"1")
_ASKED = {
    name: msgspec.Raw(value)
    for name, value in (
        ("stream", b"false"),
        (
            "kv_transfer_params",
            b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,"remote_block_ids":null,'
            b'"remote_host":null,"remote_port":null}',
        ),
    )
}
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Prefilled(msgspec.Struct):
    id: str
    kv_transfer_params: msgspec.Raw = msgspec.Raw(b"null")


_prefilled = msgspec.json.Decoder(_Prefilled)


def needs_leg(estimated: Estimated, spec: BackendSpec) -> bool:
    """Whether another replica computes its prompt. A decode replica does it itself for paths that have no such field;
    for several prompts or answers, as one KV cache is handed over, once; for a prompt that is to be echoed; and where a
    tool must be called, which one token cannot do."""
    if spec.phase is not Phase.DECODE or estimated.prepared.choices != 1:
        return False
    if estimated.identified.endpoint.upstream not in PATHS:
        return False
    body = estimated.prepared.body
    choice = getattr(body, "tool_choice", None)
    forced = getattr(choice, "type", choice) not in (None, "none", "auto")  # Anthropic's is always an object
    return not forced and getattr(body, "echo", None) is not True


def with_bound(body: bytes, bound_field: str, bound: int) -> bytes:
    """The same request for ``bound`` tokens at most."""
    return msgspec.json.encode(_fields.decode(body) | {bound_field: msgspec.Raw(b"%d" % bound)})


def prefill_body(body: bytes, bound_field: str) -> bytes:
    """The same request for one token, whose KV cache is kept to be fetched. ``bound_field``: what bounds its output."""
    fields = _fields.decode(body)
    for name in _NOT_FOR_ONE_TOKEN:
        fields.pop(name, None)
    return msgspec.json.encode(fields | _ASKED | {bound_field: _ONE})


def read_prefilled(answer: bytes) -> tuple[str, bytes]:
    """The id of such an answer, and its transfer parameters as they came; empty where it has none. Raises
    :class:`Broken`."""
    try:
        read = _prefilled.decode(answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Broken(f"its answer to a prompt is not of the API's shape: {error}"[:200]) from None
    params = bytes(read.kv_transfer_params)
    if params == b"null":
        return read.id, b""
    if not params.startswith(b"{"):
        raise Broken("its kv_transfer_params are no object")
    return read.id, params


def with_transfer(body: bytes, params: bytes) -> bytes:
    """The request for the replica that writes the answer. No body of ours has the field: clients cannot set it."""
    return body if not params else b'%b,"kv_transfer_params":%b}' % (body[:-1], params)
