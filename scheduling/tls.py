"""Who may vouch for a certificate: one answer for everything that connects by TLS."""

from __future__ import annotations

import ssl
from functools import cache
from pathlib import Path

import certifi


@cache
def authorities() -> ssl.SSLContext:
    """The system's authorities, or those of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``; certifi's where there are none.

    Read once in a process: it takes 40 ms of CPU. A replica that one part of the product trusts and another does not
    would be ready and fail, or work and never be ready.
    """
    return ssl.create_default_context(cafile=None if _system_has_any() else certifi.where())


def _system_has_any() -> bool:
    """A folder for authorities is also where nobody has installed any."""
    paths = ssl.get_default_verify_paths()
    return bool(paths.cafile) or (bool(paths.capath) and any(Path(paths.capath).iterdir()))


def refused(error: BaseException) -> str:
    """In words for people, why a certificate was not accepted; empty where something else went wrong."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return ""
