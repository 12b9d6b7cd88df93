"""SBX trains with our buffers, to the same parameters as with SB3's; and docs/sbx.md runs as it is written."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import blocks

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("sbx") is None,
        reason="SBX is not installed: pip install -c constraints.txt -e '.[all,dev,clients]', or make test-all",
    ),
]


def run(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# Images through a CNN, images flattened, vectors; what each is can be read in sbx_training.py.
@pytest.mark.parametrize(
    "case",
    [
        *("DQN", "DQN of three steps", "PPO", "PPO by callback"),
        *("SAC", "TQC", "CrossQ", "TD3", "DDPG"),
        *("SAC of vectors", "SAC with HER"),
    ],
)
def test_the_same_parameters_as_with_sb3s_buffer(case: str) -> None:
    run(str(Path(__file__).with_name("sbx_training.py")), case)


def test_the_page_as_it_is_written(tmp_path: Path) -> None:
    script = tmp_path / "page.py"
    script.write_text("".join(block.text for block in blocks("sbx.md") if block.language == "python"), encoding="utf-8")
    assert "smaller;" in run(str(script))
