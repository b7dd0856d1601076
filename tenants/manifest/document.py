"""From rows to a document and from a document to states. A state is one object's values by path, flat.

In a file, a pool's backends stand inside the pool; here every object stands alone.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import Any

import yaml

from tenants.manifest.kinds import BACKEND, BY_NAME, KINDS, MEMBERSHIP, POOL, Field, Kind
from tenants.manifest.reader import API_VERSION, ManifestError, Node

HEADER = (
    "# Quartermaster's catalog. `manage.py apply -f FILE` shows what would change and asks.\n"
    "# What a file does not mention stays as it is. Secrets are never in here.\n"
)


@dataclass(slots=True)
class Desired:
    """What a file says about one object."""

    kind: Kind
    name: str
    node: Node
    state: dict[str, Any] = field(default_factory=dict)  # only what the file mentions
    nodes: dict[str, Node] = field(default_factory=dict)  # where each value stands
    ignored: list[str] = field(default_factory=list)  # what stands in older files and means nothing any more

    def fault(self, message: str, attribute: str = "") -> str:
        """A complaint, at the line of the attribute's value if the file has one."""
        for rule in self.kind.fields:
            if rule.attribute == attribute and rule.path in self.nodes:
                return self.nodes[rule.path].fault(message)
        return self.node.fault(f"{self.kind.name} {self.name}: {attribute + ': ' if attribute else ''}{message}")


def export() -> str:
    """The whole catalog as one document, in a fixed order, every value written out."""
    backends: dict[str, list[dict[str, Any]]] = {}
    for name, row in sorted(BACKEND.current().items()):
        state = BACKEND.state(row)
        backends.setdefault(state.pop("pool"), []).append({"name": name} | _nested(state))
    items = []
    for kind in KINDS:
        if kind.inside:
            continue
        for name, row in sorted(kind.current().items()):
            spec = _nested(kind.state(row))
            if kind is MEMBERSHIP and spec["tenantRef"]["name"] is None:
                spec["tenantRef"] = None
            if kind is POOL:
                spec["backends"] = backends.get(name, [])
            items.append({"kind": kind.name, "metadata": {"name": name}, "spec": spec})
    document = {"apiVersion": API_VERSION, "kind": "List", "items": items}
    return HEADER + yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120)


def parse(items: list[Node]) -> list[Desired]:
    """What the objects of a file say. Raises ManifestError with every fault found."""
    documents: list[Desired] = []
    faults: list[str] = []
    seen: dict[tuple[str, str], Node] = {}
    for item in items:
        try:
            objects = _object(item)
        except ManifestError as error:
            faults += error.faults
            continue
        for one in objects:
            earlier = seen.setdefault((one.kind.name, one.name), one.node)
            if earlier is not one.node:
                faults.append(one.node.fault(f"{one.kind.name} {one.name!r} already stands at line {earlier.line}"))
        documents += objects
    if faults:
        raise ManifestError(faults)
    return documents


def _object(item: Node) -> list[Desired]:
    parts = _mapping(item, ("apiVersion", "kind", "metadata", "spec"))
    kind_node = parts.get("kind")
    kind = BY_NAME.get(kind_node.value) if kind_node is not None and isinstance(kind_node.value, str) else None
    names = [k.name for k in KINDS if not k.inside]
    if kind is None or kind.inside:
        raise (kind_node or item).fail(f"kind must be one of {', '.join(names)}")
    metadata = _mapping(_part(parts, "metadata", item), ("name",))
    name = _part(metadata, "name", parts["metadata"])
    if not isinstance(name.value, str) or not name.value:
        raise name.fail("must be a name; put quotes around a number")
    spec = _part(parts, "spec", item)
    inner = [k for k in KINDS if k.inside] if kind is POOL else []
    one = Desired(kind, name.value, item)
    nested = _read_fields(one, spec, kind.fields, tuple(k.inside for k in inner))
    objects = [one]
    for child in inner:
        listed = nested.get(child.inside)
        if listed is None:
            continue
        if not isinstance(listed.value, list):
            raise listed.fail("must be a list")
        objects += [_child(child, node, pool=one) for node in listed.value]
    if kind.naming is not None and set(kind.named_by) <= one.state.keys():
        if kind is MEMBERSHIP:
            one.state.setdefault("tenantRef.name", None)
        if name.value != kind.naming(one.state):
            raise name.fail(f"must be {kind.naming(one.state)!r}: {kind.naming_hint}")
    return objects


def _child(kind: Kind, node: Node, *, pool: Desired) -> Desired:
    fields = _mapping(node, None)
    name = _part(fields, "name", node)
    if not isinstance(name.value, str) or not name.value:
        raise name.fail("must be a name; put quotes around a number")
    one = Desired(kind, name.value, node)
    rest = Node({key: value for key, value in fields.items() if key != "name"}, node.file, node.line, node.path)
    _read_fields(one, rest, tuple(f for f in kind.fields if f.path != "pool"), ())
    one.state["pool"] = pool.name
    return one


def _read_fields(one: Desired, spec: Node, fields: tuple[Field, ...], nested: tuple[str, ...]) -> dict[str, Node]:
    """Fills ``one`` from a ``spec``; returns the nested lists that stand beside the fields."""
    by_path = {rule.path: rule for rule in fields}
    groups = {path.rpartition(".")[0] for path in by_path if "." in path}
    apart: dict[str, Node] = {}
    faults: list[str] = []

    def walk(node: Node, prefix: str) -> None:
        if not isinstance(node.value, dict):
            raise node.fail("must be an object: names with values")
        for key, child in node.value.items():
            path = f"{prefix}.{key}" if prefix else key
            if path in by_path:
                try:
                    one.state[path] = by_path[path].read(child)
                    one.nodes[path] = child
                except ManifestError as error:
                    faults.extend(error.faults)
            elif path in groups:
                if child.value is None and path == "tenantRef":
                    one.state["tenantRef.name"] = None
                else:
                    walk(child, path)
            elif path in nested:
                apart[path] = child
            elif path in one.kind.gone:
                one.ignored.append(child.fault(f"ignored: {one.kind.gone[path]}"))
            else:
                names = [*by_path, *nested]
                close = difflib.get_close_matches(path, names, n=1)
                hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
                faults.append(child.fault(f"{one.kind.name} has no field {path!r}; {hint}"))

    walk(spec, "")
    if faults:
        raise ManifestError(faults)
    return apart


def _mapping(node: Node, allowed: tuple[str, ...] | None) -> dict[str, Node]:
    if not isinstance(node.value, dict):
        raise node.fail("must be an object: names with values")
    if allowed is not None:
        for key, child in node.value.items():
            if key not in allowed:
                raise child.fail(f"there is no {key!r} here; there are: {', '.join(allowed)}")
    return node.value


def _part(parts: dict[str, Node], name: str, parent: Node) -> Node:
    if name not in parts:
        raise parent.fail(f"{name} is missing")
    return parts[name]


def _nested(state: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for path, value in state.items():
        *groups, leaf = path.split(".")
        level = result
        for group in groups:
            level = level.setdefault(group, {})
        level[leaf] = value
    return result
