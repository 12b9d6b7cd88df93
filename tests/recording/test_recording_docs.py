"""The page about recording: its code runs, in its order."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "recording.md"


def test_the_code_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("minari")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) > 8
    for _ in range(2):  # whoever tries something out does so more than once
        names: dict[str, Any] = {"__name__": "page"}
        for block in blocks:
            exec(compile(block, str(PAGE), "exec"), names)
        made = {path.name for path in tmp_path.iterdir()}
        assert made == {"breakout.rec", "training.rec", "breakout.html", "episode.mp4", "episode.gif", "episode.png", "minari"}
        assert len(names["recording"]) == len(names["same"]) == 300
