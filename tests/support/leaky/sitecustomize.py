"""On PYTHONPATH of a soak that is to fail: the web process keeps something of every request (QM_LEAK says what)."""

import os
import sys
import threading
import time

KEPT: list[object] = []


def _leak() -> None:
    while "scheduling.gateway.lifecycle" not in sys.modules or not hasattr(
        sys.modules["scheduling.gateway.lifecycle"], "Lifecycle"
    ):
        time.sleep(0.05)
    import asyncio

    import redis

    from scheduling.gateway.conclusion import Conclusion
    from scheduling.gateway.lifecycle import Lifecycle

    what = os.environ["QM_LEAK"].split(",")
    end, admit = Conclusion.end, Lifecycle._admit
    store = redis.Redis.from_url(os.environ["QUARTERMASTER_REDIS_URL"])

    async def keeping(self, call, reason):  # type: ignore[no-untyped-def]
        if "memory" in what:
            KEPT.append(bytearray(os.urandom(64)) * 4096)
        if "files" in what:
            KEPT.append(os.open("/dev/null", os.O_RDONLY))
        if "tasks" in what:
            KEPT.append(asyncio.get_running_loop().create_task(asyncio.Event().wait()))
        if "threads" in what and len(KEPT) % 4 == 0:
            thread = threading.Thread(target=threading.Event().wait, daemon=True)
            thread.start()
            KEPT.append(thread)
        if "keys" in what:
            store.set(f"qm:kept:{call.id}", "x" * 1000)
        await end(self, call, reason)

    async def with_a_thread(self, call):  # type: ignore[no-untyped-def]
        if "stream-threads" in what:
            threading.Thread(target=threading.Event().wait, daemon=True).start()
        return await admit(self, call)

    Lifecycle._admit = with_a_thread  # type: ignore[method-assign]
    Conclusion.end = keeping  # type: ignore[method-assign]


if "QM_LEAK" in os.environ and "controlplane.web.serve" in " ".join([*sys.orig_argv, *sys.argv]):
    threading.Thread(target=_leak, daemon=True).start()
