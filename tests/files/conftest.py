"""Tests of files use the buffers of the tests of buffers."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "buffers"))
