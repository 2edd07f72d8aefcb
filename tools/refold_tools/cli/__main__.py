"""`python -m refold_tools.cli`: the refold command where its script is not installed."""

import sys

from refold_tools.cli import main

sys.exit(main())
