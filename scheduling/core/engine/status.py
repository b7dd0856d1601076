"""What an engine's HTTP status says about the engine, for operators: gateways and probes use the same words."""

from __future__ import annotations

NOT_ADMITTED = (429, 503)  # busy, not broken: the request waits again
INPUT_REFUSED = (400, 413, 422)  # the request itself is wrong
NOT_SERVED = (404, 405, 501)  # of a path that not every engine has: this one lacks it


def misconfigured(status: int) -> bool:
    """Whether no request can be the cause: the replica's address, key or model is wrong."""
    return status in (401, 403, 404, 405, 407) or 300 <= status < 400


def what_it_means(status: int, model: str) -> str:
    """One line: what was answered, and what to look at."""
    if status in (401, 403):
        return f"answers {status}: it refuses the API key; check the replica's key"
    if status == 404:
        return f"answers 404: it does not serve model {model!r}; check the pool's upstream model and the replica's URL"
    if 300 <= status < 400:
        return f"answers {status}, a redirect: check the replica's URL"
    if status in NOT_ADMITTED:
        return f"answers {status}: it admits nothing now"
    return f"answers {status}"
