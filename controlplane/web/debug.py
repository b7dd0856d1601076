"""What Django's debug pages show: the traceback with its source lines, and nothing that somebody could use.

Settings, variables, form contents and cookies hold passwords, keys and prompts under names that no pattern foresees, so
none of them is shown. A secret in the message of an exception is blotted out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import ItemsView, Iterator
from types import FrameType
from typing import Any
from urllib.parse import unquote, urlsplit

from django.conf import settings
from django.http import HttpRequest, QueryDict
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.views.debug import ExceptionReporter, SafeExceptionReporterFilter

SHORTEST = 4  # a shorter "password" would blot out ordinary words
BLOT = "(hidden)"


def secrets() -> list[str]:
    """The values of all secret settings and of the passwords in them, the longest first."""

    def values() -> Iterator[str]:
        yield settings.SECRET_KEY
        yield from settings.SECRET_KEY_FALLBACKS
        for field in dataclasses.fields(settings.ENV):
            if not field.metadata.get("secret"):
                continue
            value = getattr(settings.ENV, field.name)
            yield value
            if "://" in value:
                password = urlsplit(value).password or ""
                yield from (password, unquote(password))

    return sorted({text for text in values() if len(text) >= SHORTEST}, key=len, reverse=True)


class NothingSecret(SafeExceptionReporterFilter):
    """For ``DEFAULT_EXCEPTION_REPORTER_FILTER``."""

    def get_safe_settings(self) -> dict[str, Any]:
        return {}

    def get_safe_cookies(self, request: HttpRequest | None) -> dict[str, Any]:
        return {}

    def get_post_parameters(self, request: HttpRequest | None) -> QueryDict:
        return QueryDict()

    def get_traceback_frame_variables(self, request: HttpRequest | None, tb_frame: FrameType) -> ItemsView[str, Any]:
        return {}.items()


class Reporter(ExceptionReporter):
    """For ``DEFAULT_EXCEPTION_REPORTER``."""

    def get_traceback_html(self) -> SafeString:
        return mark_safe(_blotted(super().get_traceback_html()))  # noqa: S308  # the page of Django itself

    def get_traceback_text(self) -> SafeString:
        return mark_safe(_blotted(super().get_traceback_text()))  # noqa: S308


def _blotted(page: str) -> str:
    for secret in secrets():
        for form in {secret, escape(secret)}:
            page = page.replace(form, BLOT)
    return page
