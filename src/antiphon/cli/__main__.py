"""``python -m antiphon.cli``."""

import sys

from antiphon.cli import main

sys.exit(main())
