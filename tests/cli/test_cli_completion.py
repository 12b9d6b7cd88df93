"""Shell completion: the scripts are run by the shells themselves."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("shtab")

from sb3_extra_buffers.cli import main


def script(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sb3-extra-buffers ", {"demo", "bench", "recommend", "record", "export", "view", "convert", "inspect", "completion"}),
        ("sb3-extra-buffers re", {"recommend", "record"}),
        ("sb3-extra-buffers demo --s", {"--size", "--seed"}),
        ("sb3-extra-buffers record Pong --fr", {"--frames"}),
        ("sb3-extra-buffers record Pong --frames ", {"render", "observation", "none"}),
        ("sb3-extra-buffers recommend Pong --algorithm P", {"PPO"}),
        ("sb3-extra-buffers completion ", {"bash", "zsh", "fish"}),
        ("sb3-extra-buffers inspect so", {"some.rec"}),
        ("sb3-extra-buffers convert some.rec so", {"some.rec"}),
        ("sb3-extra-buffers record Pong --model so", {"some.rec"}),
    ],
)
def test_bash(line: str, expected: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "some.rec").touch()
    (tmp_path / "complete.sh").write_text(script("bash", capsys), encoding="utf-8")
    ask = f"""
source ./complete.sh
complete -p sb3-extra-buffers >&2
COMP_LINE={line!r}
read -ra COMP_WORDS <<< "$COMP_LINE"
[[ "$COMP_LINE" == *" " ]] && COMP_WORDS+=("")
COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 ))
_shtab_sb3_extra_buffers
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", ask], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) >= expected
    assert set(done.stdout.split()) <= expected | {"--help", "--version"}


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells(shell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = script(shell, capsys)
    for word in ("recommend", "frames", "observation"):
        assert word in text
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    path = tmp_path / "script"
    path.write_text(text, encoding="utf-8")
    subprocess.run([shell, "-n", str(path)], check=True)
    if shell == "fish":
        ask = f"source {path}; complete -C 'sb3-extra-buffers record Pong --frames '"
        done = subprocess.run(["fish", "-c", ask], capture_output=True, text=True, check=True)
        assert {line.split()[0] for line in done.stdout.splitlines()} >= {"render", "observation", "none"}


def test_an_unknown_shell(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["completion", "tcsh"])
    assert end.value.code == 2
    assert "bash" in capsys.readouterr().err
