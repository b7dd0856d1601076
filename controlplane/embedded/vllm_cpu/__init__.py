"""``ENGINE=vllm make up``: real vLLM servers on the CPU with a tiny random model.

``plan(env, home, say)`` installs what is missing into ``HOME/vllm`` (first time: a minute or more, then a glance at a
marker), and returns the :class:`~controlplane.embedded.plan.Plan` that the supervisor runs. Everything it needs is
in three calls, should something else want them::

    folder = install.install(home.path, say)        # HOME/vllm; CannotStart says what is missing
    command = serve.command(folder, port)           # one server
    extra = serve.environ(folder)                   # to add to its environment

A server answers ``/health`` before it can generate: wait for a real token (``scheduling.engines.kinds.vllm``,
``probe``) for up to ``serve.READY_S``. It ends on SIGTERM within a second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from controlplane.embedded.plan import Engine, Plan
from controlplane.embedded.vllm_cpu import install, serve

if TYPE_CHECKING:
    from controlplane.embedded.home import Home
    from controlplane.env import Env


def plan(env: Env, home: Home, say: Callable[[str], None]) -> Plan:
    """Raises:
    CannotStart: this machine cannot run it, or a part of it cannot be found.
    """
    folder = install.install(home.path, say)
    names = [f"vllm-{i}" for i in range(serve.servers(env.sim_replicas))]
    ports = home.ports(names)
    say(f"starting {len(names)} real vLLM server(s) on the CPU; they need up to a minute before they serve")
    return Plan(
        [Engine(name, f"http://127.0.0.1:{ports[name]}", serve.SLOTS) for name in names],
        model=serve.MODEL_NAME,
        max_model_len=serve.MAX_MODEL_LEN,
        commands={name: serve.command(folder, ports[name]) for name in names},
        environ=serve.environ(folder),
        patience_s=serve.READY_S,
    )
