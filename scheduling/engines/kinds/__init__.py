"""The kinds of engine. A kind is one module of this package with a ``KIND``; nothing else has to be edited.

``tests/contract/test_engine_kinds.py`` runs every kind against a server that speaks as it does
(``tests/support/engines``). Whoever needs a client names the pool's kind here; no other package imports the modules.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

import httpx

from scheduling.engines.client import EngineClient, EngineKind

VLLM: Final = "vllm"  # what a pool is made of unless it says otherwise


@cache
def kinds() -> Mapping[str, EngineKind]:
    """All kinds by name, the default first, then sorted. Raises ValueError where two modules use one name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    declared: list[EngineKind] = [module.KIND for module in modules]
    by_name = {kind.name: kind for kind in sorted(declared, key=lambda kind: (kind.name != VLLM, kind.name))}
    if len(by_name) != len(declared):
        raise ValueError(f"two kinds of engine have one name: {sorted(kind.name for kind in declared)}")
    return MappingProxyType(by_name)


def kind_of(name: str) -> EngineKind:
    """The kind of that name. Raises LookupError that says which there are."""
    try:
        return kinds()[name]
    except KeyError:
        close = difflib.get_close_matches(name, kinds(), n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise LookupError(f"unknown kind of engine {name!r}{hint} There are: {', '.join(kinds())}.") from None


def make_client(
    url: str, *, http: httpx.AsyncClient, model: str = "", api_key: str = "", dcgm_url: str = "", kind: str = VLLM
) -> EngineClient:
    """``url`` without path; ``model`` is what a probe asks for (empty: the first the server offers). The GPU exporter
    is at ``dcgm_url`` where the replica's own page does not have its figures. Raises LookupError for an
    unknown kind."""
    return kind_of(kind).make(url, http=http, model=model, api_key=api_key, dcgm_url=dcgm_url)
