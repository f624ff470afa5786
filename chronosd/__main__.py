"""``python -m chronosd``: the command line, for where the ``chronosd`` script is not on PATH."""

import sys

from chronosd.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
