"""An experiment leaves nothing running, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support.instance import ROOT

RUNS = """
import sys, time
from pathlib import Path
from controlplane.experiments.instance import Instance
with Instance(Path(sys.argv[1]), QUARTERMASTER_SIM_REPLICAS="1"):
    print("ready", flush=True)
    time.sleep(300)
"""


@pytest.mark.timeout(240)
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells of a parent's end")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_instance_of_an_experiment_that_is_killed_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RUNS, str(tmp_path / "home")], cwd=ROOT, stdout=subprocess.PIPE
    ) as experiment:
        assert experiment.stdout is not None
        assert experiment.stdout.readline() == b"ready\n"
        begun = psutil.Process(experiment.pid).children(recursive=True)
        assert begun
        experiment.send_signal(number)
        experiment.wait()
    _, alive = psutil.wait_procs(begun, timeout=60)
    assert alive == []
