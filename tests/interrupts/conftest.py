"""The helper modules of other folders that these tests share."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "family"))
