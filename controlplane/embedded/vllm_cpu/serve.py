"""The command line and the environment of a real vLLM server on the CPU with the tiny model."""

from __future__ import annotations

import os
from pathlib import Path

MODEL_NAME = "tiny-qwen2"
MAX_MODEL_LEN = 4096
SLOTS = 32
KV_CACHE = "64M"  # 131,072 tokens of this model
MEMORY_BYTES = 1_300_000_000  # of one server, measured, with room
READY_S = 180.0  # seen: 16 to 63 s; two at once on a busy machine take longer


def servers(most: int) -> int:
    """How many servers this machine carries: one per core and per 1.3 GB, at least 1, at most ``most``."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return max(1, min(most, len(os.sched_getaffinity(0)), memory // MEMORY_BYTES))


def command(folder: Path, port: int) -> list[str]:
    """Serves ``HOME/vllm`` on the loopback. One process, no compilation, requests ordered by ``priority``."""
    return [
        str(folder / "venv" / "bin" / "vllm"),
        *("serve", str(folder / "model"), "--served-model-name", MODEL_NAME),
        *("--host", "127.0.0.1", "--port", str(port)),
        *("--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(SLOTS)),
        *("--kv-cache-memory-bytes", KV_CACHE, "--enforce-eager", "--distributed-executor-backend", "uni"),
        *("--scheduling-policy", "priority", "--uvicorn-log-level", "warning"),
    ]


def environ(folder: Path) -> dict[str, str]:
    """What to add to the process's environment: nothing fetched, nothing reported, all it leaves is in ``folder``."""
    kept = folder / "scratch"
    (kept / "tmp").mkdir(parents=True, exist_ok=True)
    return {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HOME": str(kept / "hf"),
        "VLLM_CONFIG_ROOT": str(kept / "config"),
        "VLLM_CACHE_ROOT": str(kept / "cache"),
        "TMPDIR": str(kept / "tmp"),
        # One process with one thread: on two cores, two servers with threads of their own fell from 400 to 60 tokens/s.
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "OMP_NUM_THREADS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    }
