"""What can be set: ``--additional-config '{"quartermaster": {"policy": "hybrid", "port": 9123}}'``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from scheduling.core.engine.step_time import StepTime, load_preset
from scheduling.core.policies.compose import make_policy
from scheduling.core.policies.contracts import OrderingPolicy

PORT_ABOVE = 1000  # of the plugin's ``port``, above the one that vLLM serves at

NAME = "quartermaster"  # of the entry in ``--additional-config``
_KINDS = {"str": (str,), "int": (int,), "float": (int, float), "bool": (bool,), "dict": (dict,)}


@dataclass(frozen=True, slots=True)
class Settings:
    """Every setting with its default. Raises ``ValueError`` that names the setting."""

    policy: str = "unified"  # the pool's: name, parameters, modifiers (docs/guide/policies.md)
    policy_params: dict[str, Any] = field(default_factory=dict)
    modifiers: dict[str, Any] = field(default_factory=dict)
    order: bool = True  # waiting requests in the policy's order; else in vLLM's
    chunks: bool = True  # prompt tokens of a step by how much time decoding requests have
    preempt_prefills: bool = True  # an arrival that goes first interrupts a prefill between two chunks
    victims: bool = True  # a full cache preempts who goes last by the policy; else vLLM's choice
    preset: str = ""  # step times of a preset; empty: learned from the engine's own steps
    step_time: dict[str, float] = field(default_factory=dict)  # coefficients [s], in place of a preset
    learn: bool = True  # fit step times to the engine's own steps while it serves
    margin: float = 1.2  # a predicted step, times this, ends before the first token is due
    most: int = 0  # prompt tokens of a step; 0: what the engine allows
    least: int = 128  # ... even where a token is late already
    pace_s: float = 0.4  # per token, of requests that only have a deadline for the last one; the most that is measured
    first_rate: float = 8500.0  # prompt tokens per second that are believed before the first step
    bucket_tokens: int = 200  # a running request is ranked again each time it has generated this many more
    log_steps: int = 4096  # steps and requests that are kept to be read
    log_every: int = 1  # of how many steps one is kept
    host: str = "127.0.0.1"  # where metrics and log can be read
    port: int = 0  # ... 0: nowhere. Each data-parallel engine takes the next one
    record: str = ""  # file that decisions are written to, for tests of parity; empty: none
    record_steps: int = 2000

    def __post_init__(self) -> None:
        if self.margin < 1.0:
            raise ValueError("margin must be at least 1: a step may not be planned longer than there is time")
        for name in ("least", "bucket_tokens", "log_steps", "log_every", "record_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.most < 0 or 0 < self.most < self.least:
            raise ValueError("most must be 0 or at least as large as least")
        if self.pace_s <= 0 or self.first_rate <= 0:
            raise ValueError("pace_s and first_rate must be above 0")
        if not 0 <= self.port <= 65_535:
            raise ValueError("port must be within 0 and 65535")
        if self.log_steps > 1_000_000 or self.record_steps > 1_000_000:
            raise ValueError("log_steps and record_steps must not be above 1000000")
        if self.preset and self.step_time:
            raise ValueError("give preset or step_time, not both")

    def make_policy(self) -> OrderingPolicy:
        return make_policy(self.policy, self.policy_params, self.modifiers)

    def make_step_time(self) -> StepTime | None:
        """What is believed of step times before any was seen; None: nothing."""
        if self.preset:
            return load_preset(self.preset).step_time
        if not self.step_time:
            return None
        try:
            return StepTime(**{"e": 0.0, "knee": 0.0, "a2": 0.0, **self.step_time})
        except TypeError as problem:
            raise ValueError(f"step_time: {problem}") from problem


def settings_of(additional_config: object) -> Settings:
    """The settings in vLLM's ``additional_config``. Raises ``ValueError`` that names what is wrong."""
    given = additional_config.get(NAME, {}) if isinstance(additional_config, Mapping) else {}
    if not isinstance(given, Mapping):
        raise ValueError(f"additional_config.{NAME} must be an object, not {given!r}")
    types = {each.name: str(each.type).partition("[")[0] for each in fields(Settings)}
    for name, value in given.items():
        if name not in types:
            raise ValueError(f"additional_config.{NAME} has no {name!r}; there are: {', '.join(types)}")
        kinds: tuple[type, ...] = _KINDS[types[name]]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise ValueError(f"additional_config.{NAME}.{name} must be {types[name]}, not {value!r}")
    settings = Settings(**given)
    settings.make_policy()
    settings.make_step_time()
    return settings
