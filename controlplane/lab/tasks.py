"""Lab runs in a worker."""

from __future__ import annotations

from celery import shared_task

from controlplane.lab import runs
from telemetry.tasks import minutely


@shared_task(name="telemetry.run_lab", ignore_result=True)
def run_lab(run: int) -> None:
    """Some pieces of a lab run, and a message for the next. A lost one is made up for within a minute."""
    if runs.work(run):
        run_lab.apply_async((run,), retry=False)


def resume_runs() -> None:
    """Sends for every run that is not at its end."""
    for run in runs.still():
        run_lab.apply_async((run,), retry=False)


minutely.append(resume_runs)
