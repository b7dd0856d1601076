"""The console: one page that loads the front end's built assets, and the health of what serves it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from django.conf import settings
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.templatetags.static import static
from django.views.decorators.csrf import ensure_csrf_cookie

from tenants.access import scope_for

ENTRY = "index.html"


@dataclass(frozen=True, slots=True)
class Assets:
    """Names of files, or their URLs."""

    scripts: list[str]
    styles: list[str]
    preloads: list[str]  # what the scripts import, so that a browser need not find it file by file


@lru_cache(maxsize=4)
def _entry(manifest: Path, modified_ns: int) -> Assets:
    """What the front end's entry needs, from Vite's manifest."""
    chunks = json.loads(manifest.read_text())
    name = ENTRY if ENTRY in chunks else next(n for n, c in chunks.items() if c.get("isEntry"))
    needed = [name]
    for known in needed:  # grows meanwhile
        needed += [other for other in chunks[known].get("imports", []) if other not in needed]
    styles = dict.fromkeys(style for other in needed for style in chunks[other].get("css", []))
    return Assets([chunks[name]["file"]], list(styles), [chunks[other]["file"] for other in needed[1:]])


def assets() -> Assets | None:
    """The URLs, or None where the front end was not built."""
    manifest = settings.FRONTEND_DIST / ".vite" / "manifest.json"
    try:
        found = _entry(manifest, manifest.stat().st_mtime_ns)
    except FileNotFoundError:
        return None
    return Assets(
        *([static(f"console/{name}") for name in names] for names in (found.scripts, found.styles, found.preloads))
    )


@login_required
@ensure_csrf_cookie
def console(request: HttpRequest, path: str = "") -> HttpResponse:
    """Any page of the console: which one is decided in the browser."""
    built = assets()
    if built is None:
        return render(request, "console_missing.html", status=503)
    role = scope_for(request.user).role or ""
    return render(
        request,
        "console.html",
        {
            "scripts": built.scripts,
            "preloads": built.preloads,
            "role": role,
            "csrf_cookie": settings.CSRF_COOKIE_NAME,
        },
    )
