"""``python -m controlplane.embedded``: see :mod:`controlplane.embedded.up`."""

import sys

from controlplane.embedded.up import main

sys.exit(main(sys.argv[1:]))
