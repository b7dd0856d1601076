"""What a URL of the management API may ask for: the parameters that its documentation has, and no others.

A filter that is misspelled would answer for everybody, and whoever asked would not see it.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from drf_spectacular.openapi import AutoSchema
from drf_spectacular.utils import OpenApiParameter
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

LETTERS = 100  # of an unknown name that are compared with those that there are
NAMED = 20  # unknown names that are told of, each with the list of those that there are
EVERYWHERE = ("format",)  # how an answer is written, which DRF reads


def refuse_unknown(names: Sequence[Any], known: Collection[str], called: str) -> None:
    """Raises ValidationError where there are ``names``: that there is none of them, which one may have been meant, and
    which there are."""
    if not names:
        return
    errors = {name: [_told(str(name), known, called)] for name in names[:NAMED]}
    if len(names) > NAMED:
        errors["non_field_errors"] = [f"{len(names) - NAMED} more {called}s are unknown."]
    raise ValidationError(errors)


def _told(name: str, known: Collection[str], called: str) -> str:
    close = difflib.get_close_matches(name[:LETTERS], known, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return f"There is no such {called}.{hint} {called.capitalize()}s: {', '.join(known) or 'none'}."


def check_parameters(request: Request, view: Any) -> None:
    """Raises ValidationError for what a GET asks for and its documentation does not have."""
    if request.method not in ("GET", "HEAD") or not request.query_params:
        return
    known = documented(type(view), getattr(view, "action", None) or "get", view)
    refuse_unknown([name for name in request.query_params if name not in known], known, "parameter")


_documented: dict[tuple[type, str], tuple[str, ...]] = {}


def documented(kind: type, handler: str, view: Any) -> tuple[str, ...]:
    """Names of the parameters of a view's handler, as the schema of the API has them."""
    if (kind, handler) not in _documented:
        schema: AutoSchema = (getattr(getattr(view, handler, None), "kwargs", {}).get("schema") or AutoSchema)()
        schema.view, schema.method = view, "GET"
        names = [*_names(schema.get_override_parameters())]
        for part in (*getattr(view, "filter_backends", ()), getattr(view, "pagination_class", None)):
            if part is not None and hasattr(part, "get_schema_operation_parameters"):
                names += [parameter["name"] for parameter in part().get_schema_operation_parameters(view)]
        _documented[kind, handler] = tuple(dict.fromkeys((*names, *EVERYWHERE)))
    return _documented[kind, handler]


def _names(parameters: Iterable[Any]) -> Iterable[str]:
    for parameter in parameters:
        if isinstance(parameter, OpenApiParameter):
            yield from [parameter.name] if parameter.location == OpenApiParameter.QUERY else []
        else:
            yield from (parameter() if isinstance(parameter, type) else parameter).fields
