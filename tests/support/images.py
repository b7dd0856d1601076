"""Images by digest: which files name one by its tag alone, and what a tag stands for at its registry now.

    python -m tests.support.images check FILE...   names them; ends with 1 where there is one
    python -m tests.support.images pin FILE...     writes the digest behind each tag (make pin-images)

Only the standard library: the release workflow runs it before anything is installed.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path

# `FROM name:tag` of a Dockerfile, `image: name:tag` of compose files and charts; stages and our own image have no tag
# of a registry.
NAMED = re.compile(
    r"^(?P<lead>\s*(?:FROM|image:)\s+)(?P<name>[a-z0-9./-]+):(?P<tag>[\w.-]+)(?P<digest>@sha256:\S+)?", re.M
)
OURS = "quartermaster"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
KINDS = ", ".join(
    (
        "application/vnd.oci.image.index.v1+json",
        "application/vnd.docker.distribution.manifest.list.v2+json",
        "application/vnd.oci.image.manifest.v1+json",
        "application/vnd.docker.distribution.manifest.v2+json",
    )
)
WAIT_S = 20


def by_tag(text: str) -> list[str]:
    """Images that a text names without a digest."""
    found = (match for match in NAMED.finditer(text) if match["name"] != OURS and not match["digest"])
    return [f"{match['name']}:{match['tag']}" for match in found]


def pinned(text: str, digest_of: Callable[[str, str], str]) -> str:
    """The same text with the digest behind each tag."""

    def one(match: re.Match[str]) -> str:
        if match["name"] == OURS:
            return match[0]
        digest = digest_of(match["name"], match["tag"])
        if not DIGEST.fullmatch(digest):
            raise SystemExit(f"{match['name']}:{match['tag']}: the registry names no digest ({digest!r})")
        return f"{match['lead']}{match['name']}:{match['tag']}@{digest}"

    return NAMED.sub(one, text)


def at_registry(name: str, tag: str) -> str:
    """What a tag stands for now, for all platforms together."""
    host, _, path = name.partition("/")
    if "." not in host:  # Docker's own registry
        host, path = "registry-1.docker.io", name if "/" in name else f"library/{name}"
    address = f"https://{host}/v2/{path}/manifests/{tag}"
    try:
        return _digest(address)
    except urllib.error.HTTPError as error:
        if error.code != 401:
            raise
        asked = dict(re.findall(r'(\w+)="([^"]*)"', error.headers.get("WWW-Authenticate", "")))
    query = f"service={asked.get('service', '')}&scope=repository:{path}:pull"
    with urllib.request.urlopen(f"{asked['realm']}?{query}", timeout=WAIT_S) as answer:
        token = json.load(answer)["token"]
    return _digest(address, {"Authorization": f"Bearer {token}"})


def _digest(address: str, more: dict[str, str] | None = None) -> str:
    request = urllib.request.Request(address, headers={"Accept": KINDS, **(more or {})}, method="HEAD")
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
        return str(answer.headers.get("Docker-Content-Digest", ""))


def main(words: list[str]) -> int:
    action, files = words[0], [Path(word) for word in words[1:]]
    if action == "pin":
        for file in files:
            try:
                file.write_text(pinned(file.read_text(encoding="utf-8"), at_registry), encoding="utf-8")
            except OSError as error:
                print(f"{file}: left as it is, a registry does not answer ({error})", file=sys.stderr)
                return 1
        return 0
    found = [f"{file}: {image}" for file in files for image in by_tag(file.read_text(encoding="utf-8"))]
    if found:
        print("\n".join(found) + "\nnamed by tag alone: run make pin-images where registries answer, and commit it")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
