"""The formulas that are broken on purpose, each with the tests that are to notice."""

from __future__ import annotations

from tests.support.mutations import of_control_plane, of_scheduling

MUTATIONS = of_scheduling.MUTATIONS + of_control_plane.MUTATIONS
