"""`python -m looped.bench.ladder RUN …`."""

import sys

from looped.bench.ladder.words import main

sys.exit(main())
