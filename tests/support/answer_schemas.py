"""Answers of the management API beside the OpenAPI schemas from which the console's types are made."""

from __future__ import annotations

from typing import Any

from controlplane import console_types

GROUPED = {"UsageRow"}  # the names that rows are grouped by stand beside their figures


def schemas_of_answers() -> dict[str, Any]:
    components: dict[str, Any] = console_types.answers()["components"]["schemas"]
    return components


def faults(value: Any, schema: dict[str, Any], schemas: dict[str, Any], path: str = "") -> list[str]:
    """Where a value has other keys than its schema, by path."""
    if len(schema.get("allOf", ())) == 1:
        schema = schema["allOf"][0]
    name = schema.get("$ref", "").rpartition("/")[2]
    schema = schemas.get(name, schema)
    if isinstance(value, list):
        return [fault for item in value[:3] for fault in faults(item, schema.get("items", {}), schemas, f"{path}[]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    missing, more = set(schema.get("required", ())) - value.keys(), value.keys() - schema["properties"].keys()
    problems = [f"{path} lacks {key}" for key in sorted(missing)]
    problems += [f"{path} has {key}" for key in sorted(more) if name not in GROUPED]
    for key in value.keys() & schema["properties"].keys():
        problems += faults(value[key], schema["properties"][key], schemas, f"{path}.{key}")
        if value[key] is None and not schema["properties"][key].get(
            "nullable", not schema["properties"][key].get("type")
        ):
            problems.append(f"{path}.{key} is null")
    return problems
