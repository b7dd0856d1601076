"""``docs/reference/policy-parameters.md``: what the policies' declarations say, as one page.

Written by ``python -m scheduling.core.policies.parameter_page`` and compared by a test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from scheduling.core.policies.parameters import Parameter, parameters_of
from scheduling.core.policies.registry import modifiers, orderings, routings


def page() -> str:
    lines = [
        "# Parameters of policies",
        "",
        "For operators who choose a policy and developers who set one over REST or in files: what each parameter",
        "means, its unit, its default and what is allowed. Numbers are finite. Anything else is refused with the",
        "parameter, the value and what is allowed. What the policies do: [policies.md](../guide/policies.md).",
        "",
        "This page is generated from the declarations in the policies' files, which `GET /api/v1/policies` and the",
        "console's form read as well, by `python -m scheduling.core.policies.parameter_page >",
        "docs/reference/policy-parameters.md`. Policies that are not listed have no parameters.",
        "",
    ]
    kinds = (("Ordering policies", orderings()), ("Modifiers", modifiers()), ("Routing policies", routings()))
    for title, registry in kinds:
        lines += [
            f"## {title}",
            "",
            "| policy | parameter | meaning | unit | default | allowed |",
            "|---|---|---|---|---|---|",
        ]
        lines += [f"| {' | '.join(cells)} |" for cells in _rows(registry)]
        lines.append("")
    return "\n".join(lines[:-1]) + "\n"


def _rows(registry: Mapping[str, type[Any]]) -> Iterator[tuple[str, ...]]:
    for name, policy in registry.items():
        for each in parameters_of(policy):
            yield f"`{name}`", f"`{each.name}`", each.meaning, each.unit, _default(each), str(each.allowed)


def _default(parameter: Parameter) -> str:
    value = parameter.default
    if isinstance(value, str):
        return f"`{value}`" if value else "empty"
    return f"{value:,g}" if isinstance(value, float) else f"{value:,}"


if __name__ == "__main__":
    print(page(), end="")
