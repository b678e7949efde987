"""``python -m gossamer`` is the command ``gossamer``."""

import sys

from gossamer.lab.cli import main

if __name__ == "__main__":
    sys.exit(main())
