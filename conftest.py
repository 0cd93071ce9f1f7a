"""What holds for every test: none writes to the user's home, and none sees a plan that another one found."""

from __future__ import annotations

import os

os.environ["TT_CACHE_DIR"] = ""  # also for the processes that tests start
