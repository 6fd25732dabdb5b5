"""`python -m looped` is `looped`."""

import sys

from looped.cli import main

sys.exit(main())
