"""Engines that the scaling driver ``local`` asked for: which processes the supervisor should have.

One file per replica in ``HOME/replicas`` (``{"pool", "port", "index"}``), written and removed by
:mod:`controlplane.scaling.drivers.local`; they outlive a restart. The command is the instance's own.
"""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from controlplane.embedded.plan import Plan

FOLDER = "replicas"
SUPPORT = "replicas-supported"  # in HOME/run while a supervisor looks after the folder


def template(configured: str, plan: Plan) -> list[str] | None:
    """The command of one more engine with ``{port}``, ``{index}`` and ``{name}``; None where there is none to copy.

    ``configured`` is ``QUARTERMASTER_REPLICA_COMMAND``; empty copies the first simulated engine.
    """
    if configured:
        return shlex.split(configured)
    for engine in plan.engines:
        command = plan.commands.get(engine.name)
        if command is not None and "--port" in command:
            words = [word.replace("{", "{{").replace("}", "}}") for word in command]
            words[command.index("--port") + 1] = "{port}"
            return words
    return None


def wanted(home: Path, words: list[str]) -> dict[str, list[str]]:
    """Command by name of every replica that should run."""
    commands: dict[str, list[str]] = {}
    for path in sorted((home / FOLDER).glob("*.json")):
        try:
            paper = json.loads(path.read_text())
            values = {"port": int(paper["port"]), "index": int(paper["index"]), "name": path.stem}
        except (OSError, ValueError, KeyError, TypeError):
            continue  # removed at this moment, or not ours
        commands[path.stem] = [word.format(**values) for word in words]
    return commands
