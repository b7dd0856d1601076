"""The LoRA adapters of a simulated engine, listed and loaded as vLLM documents it.

Their weights are not looked at: any path is there, unless a fault says otherwise. How an answer begins does not depend
on its adapter either; its name and its blocks in the prefix cache do.
"""

from __future__ import annotations

from typing import Any

import msgspec

from scheduling.engines.simulated.requests import ApiError


class LoadBody(msgspec.Struct):
    lora_name: str
    lora_path: str
    load_inplace: bool = False


class UnloadBody(msgspec.Struct):
    lora_name: str
    lora_int_id: int | None = None


LOAD = msgspec.json.Decoder(LoadBody)
UNLOAD = msgspec.json.Decoder(UnloadBody)


class Adapters:
    """What is loaded, by name with its path. ``most``: so many fit, as under ``--max-cpu-loras``; the one that was
    loaded first makes room."""

    def __init__(self, modules: dict[str, str], most: int | None = None) -> None:
        self.loaded = dict(modules)
        self._most = most

    def __contains__(self, name: str) -> bool:
        return name in self.loaded

    def cards(self, base: str, created: int) -> list[dict[str, Any]]:
        """Their entries in ``/v1/models``."""
        return [
            {
                "id": name, "object": "model", "created": created, "owned_by": "vllm", "root": path, "parent": base,
                "max_model_len": None, "permission": [],
            }
            for name, path in self.loaded.items()
        ]  # fmt: skip

    def load(self, body: LoadBody) -> str:
        """Raises :class:`ApiError` as vLLM answers."""
        if not body.lora_name or not body.lora_path:
            raise ApiError(400, "Both 'lora_name' and 'lora_path' must be provided.", "InvalidUserInput")
        if body.lora_name in self.loaded and not body.load_inplace:
            raise ApiError(
                400,
                f"The lora adapter '{body.lora_name}' has already been loaded. If you want to load the adapter in "
                "place, set 'load_inplace' to True.",
                "InvalidUserInput",
            )
        while self._most is not None and len(self.loaded) >= self._most:
            del self.loaded[next(iter(self.loaded))]
        self.loaded[body.lora_name] = body.lora_path
        return f"Success: LoRA adapter '{body.lora_name}' added successfully."

    def unload(self, body: UnloadBody) -> str:
        """Raises :class:`ApiError` as vLLM answers."""
        if self.loaded.pop(body.lora_name, None) is None:
            raise ApiError(404, f"The lora adapter '{body.lora_name}' cannot be found.", "NotFoundError")
        return f"Success: LoRA adapter '{body.lora_name}' removed successfully."
