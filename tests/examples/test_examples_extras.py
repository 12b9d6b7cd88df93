"""An example whose extra is not installed says which one it is, and nothing else."""

import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_maskable_ppo_without_sb3_contrib() -> None:
    program = (
        "import runpy, sys\nsys.modules['sb3_contrib'] = None\nsys.path.insert(0, '.')\nsys.argv = ['example', '--help']\n"
        "runpy.run_path('example_maskable_ppo.py', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done.stderr
    assert 'needs sb3-contrib: pip install ".[contrib]"' in done.stderr
