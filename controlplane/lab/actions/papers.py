"""What actions on the papers' scenarios share: tables of scenarios, and duels of the default policy."""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.lab import unified
from controlplane.lab.actions.base import Action
from controlplane.lab.tables import Lab, Table
from scheduling.simulator.duel import Bout, bout_name, bouts_of, fight, load_match, match_names, verdicts_of
from scheduling.simulator.lab import Scenario, Task, tasks_of


class PaperAction(Action):
    """An action on scenarios."""

    def tables(self, scenarios: Sequence[Scenario], processes: int) -> list[Table]:
        total = sum(len(tasks_of(scenario)) for scenario in scenarios)
        with self.progress(total) as (bar, item):

            def done(task: Task) -> None:
                bar.update(item, advance=1, description=f"{task.scenario}: {task.run}"[:32])

            return Lab(self.folder(), processes).tables(scenarios, done)

    def duels(self, seeds: int, processes: int) -> unified.Rows:
        matches = sorted((load_match(name) for name in match_names()), key=lambda match: match.id)
        bouts = [bout for match in matches for bout in bouts_of(match, seeds)]
        with self.progress(len(bouts)) as (bar, item):

            def done(bout: Bout) -> None:
                bar.update(item, advance=1, description=f"{bout.match}: {bout.run}"[:32])

            figures = Lab(self.folder(), processes).figures(bouts, fight, bout_name, done)
        return [(match, verdicts_of(match, figures, seeds)) for match in matches]
