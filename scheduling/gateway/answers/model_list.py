"""``/v1/models``: the models that a key may use, in OpenAI's format, or in Anthropic's for clients of its API."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from scheduling.core.outcomes import Reason
from scheduling.gateway.bodies.checks import invalid
from scheduling.gateway.entry.auth import Card
from scheduling.gateway.errors import Refusal

MODELS = "/v1/models"
MOST_OF_A_PAGE = 1000  # of a page, as Anthropic bounds them
MOST_FIELDS = 32  # of a query
_VERSION = b"anthropic-version"  # a header that only its clients send

_encode = msgspec.json.Encoder().encode


class ModelCard(Struct):
    id: str
    created: int
    max_model_len: int
    object: str = "model"
    owned_by: str = "quartermaster"
    parent: str | None = None  # of an adapter: the model that it adapts


class ModelList(Struct):
    data: list[ModelCard]
    object: str = "list"


class ModelInfo(Struct):
    """As Anthropic describes one."""

    id: str
    display_name: str
    created_at: datetime
    max_input_tokens: int
    type: str = "model"
    lifecycle: str = "active"


class ModelPage(Struct):
    data: list[ModelInfo]
    has_more: bool
    first_id: str | None
    last_id: str | None


def speaks_anthropic(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether a request is of a client of Anthropic's API, at a path that both have."""
    return any(name == _VERSION for name, _ in headers)


def list_models(path: str, query: bytes, cards: Mapping[str, Card], created_s: int, anthropic: bool) -> bytes:
    """The answer to a question at ``/v1/models`` or below. Raises :class:`Refusal` for a model that the key does not
    open, as for none."""
    name = path[len(MODELS) + 1 :]
    if path != MODELS and name not in cards:
        raise Refusal(Reason.UNKNOWN_MODEL, model=name[:256], param="model")
    if anthropic:
        created = datetime.fromtimestamp(created_s, UTC)
        if path != MODELS:
            return _encode(ModelInfo(name, name, created, cards[name].max_model_len))
        names, more = _page(list(cards), query)
        infos = [ModelInfo(one, one, created, cards[one].max_model_len) for one in names]
        return _encode(ModelPage(infos, more, names[0] if names else None, names[-1] if names else None))
    models = {one: ModelCard(one, created_s, card.max_model_len, parent=card.parent) for one, card in cards.items()}
    return _encode(ModelList(list(models.values()))) if path == MODELS else _encode(models[name])


def _page(names: list[str], query: bytes) -> tuple[list[str], bool]:
    """The names that Anthropic's ``limit``, ``after_id`` and ``before_id`` ask for, and whether there are more that
    way. Without a limit: all."""
    try:
        asked = dict(parse_qsl(query.decode("latin-1"), max_num_fields=MOST_FIELDS))
    except ValueError:
        raise invalid(f"A query has at most {MOST_FIELDS} fields.") from None
    limit = asked.get("limit", str(MOST_OF_A_PAGE))
    if not (limit.isascii() and limit.isdigit() and len(limit) <= 5 and 1 <= int(limit) <= MOST_OF_A_PAGE):
        raise invalid(f"limit is 1 to {MOST_OF_A_PAGE}.", "limit")
    for way in ("after_id", "before_id"):
        if way in asked and asked[way] not in names:
            raise invalid(f"{way} names no model that is listed here.", way)
    most = int(limit)
    if "before_id" in asked:
        names = names[: names.index(asked["before_id"])]
        return names[-most:], len(names) > most
    if "after_id" in asked:
        names = names[names.index(asked["after_id"]) + 1 :]
    return names[:most], len(names) > most
