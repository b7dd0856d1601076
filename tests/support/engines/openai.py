"""A server with three routes of the OpenAI API: models, chat and completions. Nothing says how it fares."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from scheduling.engines.simulated.api import Api
from scheduling.engines.simulated.http import Connection, Request
from scheduling.engines.simulated.requests import ApiError
from scheduling.engines.simulated.server import SimulatedServer

ROUTES = ("/v1/models", "/v1/chat/completions", "/v1/completions")
NOT_TAKEN = ("priority", "cache_salt", "structured_outputs", "vllm_xargs")


class OpenAiApi(Api):
    """What a strict server of another make answers."""

    kept: ClassVar[tuple[str, ...]] = ROUTES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        simulated = {at: route for at, route in self._routes.items() if at[1] in self.kept or at[1].startswith("/sim/")}
        self._routes = simulated | {
            at: self._strict(route) for at, route in simulated.items() if "completions" in at[1]
        }
        self._paths = {path for _, path in self._routes}

    def _strict(self, route: Any) -> Any:
        def answer(connection: Connection, request: Request) -> None:
            taken = msgspec.json.decode(request.body)
            unknown = [name for name in NOT_TAKEN if name in taken]
            if unknown:
                raise ApiError(400, f"unknown field: {unknown[0]}")
            route(connection, request)

        return answer

    def _models(self, connection: Connection, request: Request) -> None:
        card = {"id": self._model, "object": "model", "created": self._created, "owned_by": "library"}
        connection.respond(200, msgspec.json.encode({"object": "list", "data": [card]}))


class Server(SimulatedServer):
    api_type = OpenAiApi
