"""A release is what its tag, its version and its changelog say, made by workflows that name exactly what they use."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import images, release

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGELOG = (
    "## [Unreleased]\n\n## [1.2.3] - 2026-11-23\n\n### Added\n\n- A thing.\n\n## [1.2.2] - 2026-11-01\n\n- Old.\n"
)
DIGEST = "sha256:" + "0a" * 32


def read(name: str) -> dict[str, Any]:
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def needed(jobs: dict[str, Any], name: str) -> set[str]:
    """The jobs that come before one."""
    before = jobs[name].get("needs", [])
    direct = {before} if isinstance(before, str) else set(before)
    return direct.union(*(needed(jobs, each) for each in direct)) if direct else direct


def unpinned(text: str) -> list[str]:
    """Actions that a workflow names by something that can be moved."""
    used = re.findall(r"uses:\s*(\S+)", text)
    return [one for one in used if not one.startswith("./") and not re.search(r"@[0-9a-f]{40}$", one)]


def test_tests_come_before_anything_is_published() -> None:
    jobs = read("release.yml")["jobs"]
    assert set(jobs) == {"tests", "files", "image", "release"}
    assert jobs["tests"]["uses"] == "./.github/workflows/ci.yml"
    for name in ("files", "image", "release"):
        assert "tests" in needed(jobs, name)
    assert needed(jobs, "release") == {"tests", "files", "image"}


def test_all_supported_pythons_are_tested() -> None:
    matrix = read("ci.yml")["jobs"]["pythons"]["strategy"]["matrix"]["python"]
    assert matrix == ["3.11", "3.12", "3.13", "3.14"]
    steps = read("ci.yml")["jobs"]["whole"]["steps"]
    assert any(step.get("run") == ".ci/run" for step in steps)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actions_are_named_by_commit_and_rights_are_given_job_by_job(path: Path) -> None:
    text = path.read_text()
    assert unpinned(text) == []
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert not re.search(r"run:.*\$\{\{ *github\.(event|head_ref|ref_name)", text), "a name may be a shell command"


def test_an_action_that_can_be_moved_is_found() -> None:
    assert unpinned("- uses: actions/checkout@v4\n- uses: ./.github/workflows/ci.yml\n") == ["actions/checkout@v4"]


def test_files_and_image_are_attested() -> None:
    jobs = read("release.yml")["jobs"]
    for name in ("files", "image"):
        assert jobs[name]["permissions"]["id-token"] == "write"
        assert any("attest-build-provenance" in step.get("uses", "") for step in jobs[name]["steps"])
    assert any("tests.support.images check" in step.get("run", "") for step in jobs["image"]["steps"])


def test_the_notes_of_a_release_are_its_section_of_the_changelog() -> None:
    version, told = release.checked("v1.2.3", {"pyproject.toml": "1.2.3"}, CHANGELOG)
    assert (version, told) == ("1.2.3", "### Added\n\n- A thing.\n")


@pytest.mark.parametrize(
    ("tag", "version", "changelog", "why"),
    [
        ("v1.2.3", "1.2.3.dev0", CHANGELOG, "pyproject.toml 1.2.3.dev0"),
        ("v1.2.4", "1.2.4", CHANGELOG, "no dated section"),
        ("v1.2.3", "1.2.3", CHANGELOG.replace(" - 2026-11-23", ""), "no dated section"),
        ("1.2.3", "1.2.3", CHANGELOG, "three numbers"),
        ("v1.2", "1.2", CHANGELOG, "three numbers"),
    ],
)
def test_a_tree_that_is_not_the_release_of_its_tag_is_refused(tag: str, version: str, changelog: str, why: str) -> None:
    with pytest.raises(release.Refused, match=re.escape(why)):
        release.checked(tag, {"pyproject.toml": version}, changelog)


def test_the_plugin_and_the_chart_have_the_version_of_the_rest() -> None:
    named = release.versions()
    assert len(named) == 3
    assert len(set(named.values())) == 1
    with pytest.raises(release.Refused, match=re.escape("the plugin 1.2.2")):
        release.checked("v1.2.3", {"pyproject.toml": "1.2.3", "the plugin": "1.2.2"}, CHANGELOG)


def test_the_sums_name_what_is_published_and_nothing_else(tmp_path: Path) -> None:
    for name in ("a.whl", "notes.md", ".gitignore", "SHA256SUMS"):
        (tmp_path / name).write_text(name)
    assert [line.split()[1] for line in release.sums(tmp_path).splitlines()] == ["a.whl"]


def test_the_archive_of_a_commit_is_the_same_bytes_each_time(tmp_path: Path) -> None:
    both = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        both.append(release.archive("HEAD", "1.2.3", tmp_path / name).read_bytes())
        assert release.sums(tmp_path / name).endswith("  quartermaster-1.2.3.tar.gz\n")
    assert both[0] == both[1]


def test_images_without_a_digest_are_found_and_given_one() -> None:
    text = f"FROM node:24-slim AS console\nCOPY --from=console a b\nFROM python:3.12-slim@{DIGEST}\n"
    assert images.by_tag(text) == ["node:24-slim"]
    other = DIGEST.replace("0a", "0b")
    pinned = images.pinned(text, lambda name, tag: {"node": DIGEST, "python": other}[name])
    assert pinned.splitlines() == [
        f"FROM node:24-slim@{DIGEST} AS console", "COPY --from=console a b", f"FROM python:3.12-slim@{other}",
    ]  # fmt: skip
    assert images.by_tag(pinned) == []
    compose = "    image: quartermaster:local\n    image: vllm/vllm-openai:v0.32.0\n"
    assert images.by_tag(compose) == ["vllm/vllm-openai:v0.32.0"]


def test_what_is_no_digest_is_never_written() -> None:
    with pytest.raises(SystemExit, match="names no digest"):
        images.pinned("FROM python:3.12-slim\n", lambda name, tag: "")


# Run by tag alone, each with its reason.
BY_TAG = {
    "vllm/vllm-openai:v0.32.0",  # no digest is known from two sources; the engine of an example, not of a release
}
PINNED = ("Dockerfile", "docker-compose.yml", "deploy/helm/quartermaster/values.yaml")


def test_every_image_that_we_name_is_one_that_the_tool_sees() -> None:
    for name in PINNED:
        text = (ROOT / name).read_text()
        named = re.findall(r"^\s*(?:FROM|image:)\s+(?!quartermaster)([^\s:@]+:[^\s@]+)", text, re.M)
        seen = [
            f"{match['name']}:{match['tag']}" for match in images.NAMED.finditer(text) if match["name"] != images.OURS
        ]
        assert seen == named
        assert named


def test_nothing_runs_by_its_tag_alone_but_what_is_listed_here() -> None:
    found = {image for name in PINNED for image in images.by_tag((ROOT / name).read_text())}
    assert found == BY_TAG


def test_an_image_has_one_digest_wherever_it_is_named() -> None:
    digests: dict[str, set[str]] = {}
    for name in PINNED:
        for match in images.NAMED.finditer((ROOT / name).read_text()):
            if match["digest"]:
                assert images.DIGEST.fullmatch(match["digest"][1:])
                digests.setdefault(f"{match['name']}:{match['tag']}", set()).add(match["digest"])
    assert len(digests) == 7
    assert {image for image, found in digests.items() if len(found) > 1} == set()


def test_make_pin_images_renews_every_file_that_names_one() -> None:
    line = next(line for line in (ROOT / "Makefile").read_text().splitlines() if "tests.support.images pin" in line)
    assert line.split(" pin ")[1].split() == list(PINNED)
