"""``python -m controlplane.embedded.vllm_cpu [HOME]`` installs vLLM for the CPU by hand."""

import os
import sys
from pathlib import Path

from controlplane.embedded.home import CannotStart
from controlplane.embedded.vllm_cpu.install import install


def main() -> int:
    home = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ.get("QUARTERMASTER_HOME", ".quartermaster"))
    try:
        install(home.absolute(), lambda line: print(line, flush=True))
    except CannotStart as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
