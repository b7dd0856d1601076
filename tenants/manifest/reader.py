"""YAML with the line of every value, so that each complaint can say where.

Stricter than YAML: a key given twice is an error (YAML parsers silently take the last), and anchors are refused (a few
lines of them can stand for gigabytes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import yaml

API_VERSION = "quartermaster/v1"


class ManifestError(Exception):
    """The file cannot be applied. One line per fault: file, line, path, what is wrong, what to do."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class Node:
    """A value, where it stands and how one gets there."""

    value: Any  # str, int, float, bool, None, list[Node] or dict[str, Node]
    file: str
    line: int
    path: str

    def fault(self, message: str) -> str:
        where = f"{self.file}:{self.line}"
        return f"{where}: {self.path}: {message}" if self.path else f"{where}: {message}"

    def fail(self, message: str) -> ManifestError:
        return ManifestError([self.fault(message)])

    def plain(self) -> Any:
        """The value without positions."""
        if isinstance(self.value, dict):
            return {key: node.plain() for key, node in self.value.items()}
        if isinstance(self.value, list):
            return [node.plain() for node in self.value]
        return self.value


class _Loader(yaml.SafeLoader):
    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]  # nor is its stub annotated
            raise yaml.MarkedYAMLError(
                problem="aliases (*name) are not supported: write the value out", problem_mark=event.start_mark
            )
        return super().compose_node(parent, index)


def read(text: str, file: str = "<stdin>") -> list[Node]:
    """The objects of a file: the items of a ``List``, or one object per YAML document.

    Raises:
        ManifestError: when the text is not YAML or not made of objects.
    """
    loader: _Loader | None = None
    items: list[Node] = []
    try:
        loader = _Loader(text)
        while loader.check_node():
            root = _convert(loader, cast(yaml.Node, loader.get_node()), file, "")
            if root.value is None:
                continue
            items += _items(root)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line + 1 if mark else 1
        raise ManifestError([f"{file}:{line}: {error.problem or error.context or 'this is not YAML'}"]) from error
    except yaml.YAMLError as error:
        raise ManifestError([f"{file}:1: this is not YAML: {error}"]) from error
    except RecursionError as error:
        raise ManifestError([f"{file}:1: this is nested too deeply"]) from error
    finally:
        if loader is not None:
            loader.dispose()
    if not items:
        raise ManifestError([f"{file}:1: there is no object in this file; `manage.py export` shows the form"])
    return items


def _items(root: Node) -> list[Node]:
    if not isinstance(root.value, dict):
        raise root.fail(f"expected an object with apiVersion: {API_VERSION} and kind")
    version = root.value.get("apiVersion")
    if version is None or version.value != API_VERSION:
        raise (version or root).fail(f"apiVersion must be {API_VERSION}")
    kind = root.value.get("kind")
    if kind is None or not isinstance(kind.value, str):
        raise (kind or root).fail("kind is missing; use List with items, or one object per document")
    if kind.value != "List":
        return [root]
    items = root.value.get("items")
    if items is None or not isinstance(items.value, list):
        raise (items or root).fail("a List needs items: a list of objects")
    extra = [node for name, node in root.value.items() if name not in ("apiVersion", "kind", "items")]
    if extra:
        raise extra[0].fail("a List has only apiVersion, kind and items")
    return items.value


def _convert(loader: _Loader, node: yaml.Node, file: str, path: str) -> Node:
    line = node.start_mark.line + 1
    if isinstance(node, yaml.MappingNode):
        mapping: dict[str, Node] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            here = Node(None, file, key_node.start_mark.line + 1, path)
            if key is None or key == "<<":
                raise here.fail("keys must be plain words")
            if key in mapping:
                raise here.fail(f"{key!r} is given twice; keep one")
            mapping[key] = _convert(loader, value_node, file, f"{path}.{key}" if path else key)
        return Node(mapping, file, line, path)
    if isinstance(node, yaml.SequenceNode):
        children = [_convert(loader, child, file, f"{path}[{index}]") for index, child in enumerate(node.value)]
        return Node(children, file, line, path)
    if node.tag == "tag:yaml.org,2002:timestamp":
        return Node(node.value, file, line, path)  # times are read where a time is expected
    try:
        value = loader.construct_object(node)
        if isinstance(value, str):
            value.encode()  # YAML can say half of a character
        return Node(value, file, line, path)
    except (ValueError, LookupError) as error:  # the latter: of "!!bool maybe" and "!!int ''"
        raise Node(None, file, line, path).fail(f"{node.value!r} cannot be read: {error}") from error
