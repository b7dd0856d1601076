"""The console: one page that loads the front end's built assets, and the health of what serves it."""

from __future__ import annotations

import json
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


@lru_cache(maxsize=4)
def _entry(manifest: Path, modified_ns: int) -> tuple[list[str], list[str]]:
    """Scripts and stylesheets of the front end's entry, from Vite's manifest."""
    chunks = json.loads(manifest.read_text())
    entry = chunks.get(ENTRY) or next(c for c in chunks.values() if c.get("isEntry"))
    styles = list(entry.get("css", []))
    for name in entry.get("imports", []):
        styles += [s for s in chunks[name].get("css", []) if s not in styles]
    return [entry["file"]], styles


def assets() -> tuple[list[str], list[str]] | None:
    """URLs of (scripts, stylesheets), or None where the front end was not built."""
    manifest = settings.FRONTEND_DIST / ".vite" / "manifest.json"
    try:
        scripts, styles = _entry(manifest, manifest.stat().st_mtime_ns)
    except FileNotFoundError:
        return None
    return [static(f"console/{s}") for s in scripts], [static(f"console/{s}") for s in styles]


@login_required
@ensure_csrf_cookie
def console(request: HttpRequest, path: str = "") -> HttpResponse:
    """Any page of the console: which one is decided in the browser."""
    built = assets()
    if built is None:
        return render(request, "console_missing.html", status=503)
    scripts, styles = built
    role = scope_for(request.user).role or ""
    return render(request, "console.html", {"scripts": scripts, "styles": styles, "role": role})
