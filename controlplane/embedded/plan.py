"""What serves an instance's model."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Engine:
    """One replica: its address, and what it can hold (0: ask it)."""

    name: str
    url: str
    slots: int
    kv_tokens: int = 0


@dataclass(frozen=True)
class Plan:
    """What serves the model, and as which processes of ours (none for engines that already run)."""

    engines: list[Engine]
    summaries: list[Engine] = field(default_factory=list)  # of the demo's second pool, which shows the tuning loop
    pool: str = ""  # empty: named after the model
    model: str = ""  # empty: ask the first engine
    max_model_len: int = 0  # 0: ask the first engine
    kind: str = ""  # of engine; empty: as the pool is configured, vLLM where there is none yet
    commands: dict[str, list[str]] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)
    patience_s: float = 90.0  # until they serve
    caches: bool = True  # they have prefix caches
