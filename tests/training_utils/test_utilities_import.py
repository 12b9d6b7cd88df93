"""Who does not use the utilities does not load them, and they need no extra."""

import subprocess
import sys

CODE = """
import sys
import sb3_extra_buffers.compressed

loaded = [name for name in sys.modules if name.startswith("sb3_extra_buffers.")]
above = ("training_utils", "recording", "cli", "testing")
assert not [name for name in loaded if name.split(".")[1] in above], loaded

import sb3_extra_buffers.training_utils as utilities

assert "sb3_extra_buffers.training_utils.prioritized_dqn" not in sys.modules
for extra in ("tqdm", "psutil", "rich", "ale_py", "cv2", "tensorboard", "numba", "zstandard"):
    sys.modules[extra] = None
for name in utilities.__all__:
    assert getattr(utilities, name) is not None
assert utilities.warmup is utilities.warm_up and callable(utilities.eval_model)
assert set(utilities.__all__) <= set(dir(utilities))
try:
    utilities.nothing
except AttributeError as error:
    assert "nothing" in str(error)
else:
    raise AssertionError
"""


def test_imports() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
