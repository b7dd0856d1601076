"""The actions of `manage.py lab`, one module each. Another action is another module and a line here."""

from __future__ import annotations

from typing import Final

from controlplane.lab.actions.bar import Bar
from controlplane.lab.actions.base import Action
from controlplane.lab.actions.compare import Compare
from controlplane.lab.actions.front import Front
from controlplane.lab.actions.mix import Mix
from controlplane.lab.actions.parity import Parity
from controlplane.lab.actions.record import Record
from controlplane.lab.actions.report import Report
from controlplane.lab.actions.run import Run
from controlplane.lab.actions.scenarios import List
from controlplane.lab.actions.shared import Shared
from controlplane.lab.actions.shift import Shift
from controlplane.lab.actions.trust import Trust
from controlplane.lab.actions.tune import Tune
from controlplane.lab.actions.unified import Unified

ACTIONS: Final[tuple[type[Action], ...]] = (
    List,
    Run,
    Compare,
    Front,
    Bar,
    Tune,
    Record,
    Parity,
    Trust,
    Mix,
    Shared,
    Shift,
    Unified,
    Report,
)
