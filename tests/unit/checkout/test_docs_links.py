"""Documents point at what is there: every relative link resolves, and so does every path under docs/ that code
names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "frontend" / "README.md"])
FOLDERS = {"guide", "reference", "results", "internals"}
LINK = re.compile(r"\]\(([^)\s]+)\)")
MENTION = re.compile(r"(?<![\w.-])docs/[\w/.-]+\.(?:md|svg|png)")


def anchors(page: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_resolves(page: Path) -> None:
    broken = []
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        found = (page.parent / name).resolve() if name else page
        if not found.exists() or (anchor and found.suffix == ".md" and anchor not in anchors(found)):
            broken.append(target)
    assert broken == []


def test_paths_of_documents_in_code_and_text_exist() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a checkout")
    broken = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.suffix not in {".py", ".md", ".ts", ".tsx", ".lua", ".toml", ".yml", ".yaml", ".example", ""}:
            continue
        if not path.is_file() or path.name == "CHANGELOG.md":
            continue
        for said in MENTION.findall(path.read_text(encoding="utf-8", errors="replace")):
            if not (ROOT / said).exists():
                broken.append(f"{name}: {said}")
    assert broken == []


def test_the_architecture_lists_every_page_of_decisions() -> None:
    linked = {target for target in LINK.findall((ROOT / "ARCHITECTURE.md").read_text()) if "/decisions/" in target}
    there = {str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "internals" / "decisions").glob("*.md")}
    assert linked == there != set()


def test_every_page_is_in_one_of_the_four_folders() -> None:
    assert [page.name for page in (ROOT / "docs").glob("*.md")] == []
    assert {path.name for path in (ROOT / "docs").iterdir() if any(path.rglob("*.*"))} == FOLDERS


def test_no_file_has_the_marks_of_a_merge_that_somebody_has_yet_to_decide() -> None:
    marks = ["-e", "^<<<<<<< ", "-e", "^>>>>>>> "]
    found = subprocess.run(["git", "grep", "-nI", *marks], cwd=ROOT, capture_output=True, text=True)
    if found.returncode > 1:
        pytest.skip("not a checkout")
    assert found.stdout == ""
