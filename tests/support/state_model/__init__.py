"""Two pools that must be one: the real scripts on a real Redis, and the Python reference model, driven together.

``World`` makes every move on both, compares answers and every key, and checks the laws of
``docs/internals/state.md``. The scripts are those of production but for their first text, the clock, which here reads a
key so that time can pass.
"""

from __future__ import annotations

from tests.support.state_model.listeners import Ears, model_connection
from tests.support.state_model.members import BACKENDS, ENTITLEMENTS, GATEWAYS, HOLDERS, REASONS, REQUESTS, WEIGHTS
from tests.support.state_model.scripts import TEST_CLOCK, timed_scripts, variant, variants
from tests.support.state_model.walk import World, walk

__all__ = [
    "BACKENDS",
    "ENTITLEMENTS",
    "GATEWAYS",
    "HOLDERS",
    "REASONS",
    "REQUESTS",
    "TEST_CLOCK",
    "WEIGHTS",
    "Ears",
    "World",
    "model_connection",
    "timed_scripts",
    "variant",
    "variants",
    "walk",
]
