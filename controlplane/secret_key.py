"""Django's secret key: configured, or the instance's own."""

from __future__ import annotations

import contextlib
import os
import secrets

from controlplane.env import PREFIX, Env, SettingsError


def secret_key(env: Env) -> str:
    """The configured key, or the instance's own, made once and readable by its owner only.

    Raises:
        SettingsError: where several machines may share a database, so a key of one's own would end others' sessions.
    """
    if env.secret_key:
        return env.secret_key
    if not env.embedded:
        raise SettingsError(
            f"{PREFIX}SECRET_KEY is empty. With {PREFIX}DATABASE_URL every process needs the same key: set it to "
            "at least 32 random characters, e.g. from `python -c 'import secrets; print(secrets.token_urlsafe(48))'`."
        )
    path = env.home / "secret-key"
    # Several processes may start at once on an empty HOME: whoever links first wins, all read the same file.
    if not path.exists():
        env.home.mkdir(parents=True, exist_ok=True)
        draft = env.home / f".secret-key-{os.getpid()}"
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(secrets.token_urlsafe(48))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
        draft.unlink()
    return path.read_text().strip()
