"""Who may vouch for a certificate: one answer for everything that connects by TLS."""

from __future__ import annotations

import ssl
from functools import cache

import certifi


@cache
def authorities() -> ssl.SSLContext:
    """The system's authorities, or those of ``SSL_CERT_FILE`` and ``SSL_CERT_DIR``; certifi's where there are none.

    Read once in a process: it takes 40 ms of CPU. A replica that one part of the product trusts and another does not
    would be ready and fail, or work and never be ready.
    """
    paths = ssl.get_default_verify_paths()
    return ssl.create_default_context(cafile=None if paths.cafile or paths.capath else certifi.where())


def refused(error: BaseException) -> str:
    """In words for people, why a certificate was not accepted; empty where something else went wrong."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not accepted: {cause.verify_message}"
        cause = cause.__cause__ or cause.__context__
    return ""
