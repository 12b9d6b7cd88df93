"""Tests of data sets use the simulated disk of the tests of files."""

import sys
from pathlib import Path

for folder in ("buffers", "files"):
    sys.path.insert(0, str(Path(__file__).parents[1] / folder))
