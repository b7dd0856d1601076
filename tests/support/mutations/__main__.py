import sys

from tests.support.mutations.run import main

sys.exit(main())
