"""The tree in figures, for docs/results/structure.md: ``python -m tests.support.structure``.

Modules and imports as ``grimp`` sees them, without migrations; imports within functions and those for types count too.
Files and lines are ``*.py`` that git tracks, without migrations.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from pathlib import Path, PurePath

import grimp

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("scheduling", "telemetry", "controlplane", "tenants")
FEATURES = ("tuning", "lab", "scaling")
LONG = 500  # lines


def tracked(*suffixes: str) -> list[PurePath]:
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    paths = [PurePath(name) for name in names if name.endswith(suffixes)]
    return [path for path in paths if "migrations" not in path.parts and path.name != "schema.ts"]


def lines_of(path: PurePath) -> int:
    return len((ROOT / path).read_text(encoding="utf-8").splitlines())


def main() -> None:
    graph = grimp.build_graph(*PACKAGES)
    modules = {name for name in graph.modules if ".migrations" not in name}
    imports = [(one, other) for one in modules for other in graph.find_modules_directly_imported_by(one) & modules]
    print(f"modules {len(modules)}, imports {len(imports)}")
    between = Counter((one.partition(".")[0], other.partition(".")[0]) for one, other in imports)
    for (one, other), count in sorted(between.items()):
        print(f"  {one} -> {other}: {count}")
    python = tracked(".py")
    for package in PACKAGES:
        mine = [path for path in python if path.parts[0] == package]
        at_the_top = sum(len(path.parts) == 2 for path in mine)
        print(f"{package}: {len(mine)} files, {sum(map(lines_of, mine)):,} lines, {at_the_top} files at the top")
    for feature in FEATURES:
        named = [
            path
            for path in python
            if path.parts[0] in PACKAGES and (feature in path.parts[:-1] or feature in path.stem.split("_"))
        ]
        folders = Counter(str(path.parent) for path in named)
        print(f"{feature}: {len(named)} files in {len(folders)} folders: {dict(folders.most_common())}")
    for count, path in sorted(((lines_of(path), path) for path in tracked(".py", ".ts", ".tsx", ".lua")), reverse=True):
        if count > LONG:
            print(f"{path}: {count} lines")


if __name__ == "__main__":
    main()
