"""A plugin of pytest for test_sb3_versions.py: says which packages the tests of a run have really used."""

from __future__ import annotations

import json
import sys
from typing import Any

PACKAGES = ("stable_baselines3", "sb3_contrib", "gymnasium", "sb3_extra_buffers")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    used = {name: (sys.modules[name].__version__, sys.modules[name].__file__) for name in PACKAGES if name in sys.modules}
    passed = len(terminalreporter.stats.get("passed", []))
    terminalreporter.write_line("used: " + json.dumps({"packages": used, "passed": passed}))
