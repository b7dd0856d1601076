"""The front end's stylesheets for pages that Django renders: login and errors look like the console."""

from __future__ import annotations

from django import template

from controlplane.web.console import assets

register = template.Library()


@register.simple_tag
def console_styles() -> list[str]:
    """URLs of the built stylesheets; none where the front end was not built, and the pages stay readable without."""
    built = assets()
    return built.styles if built else []
