"""
Run a command that compiles C, with a compiler that is there.

Python would call the compiler that it was built with. Where that is missing but another one is found, that one is taken; where
there is none at all, the one that comes as the Python package ``ziglang`` is installed beside this interpreter.

    python scripts/with_compiler.py python setup.py build_ext --inplace
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
SHARED = {"darwin": "-bundle -undefined dynamic_lookup"}


def is_there(command: str | None) -> bool:
    """Whether the program that a command begins with can be found."""
    return bool(command) and shutil.which(shlex.split(command)[0]) is not None


def zig() -> str:
    """The C compiler of the ziglang package, which is installed if need be."""
    where = [sys.executable, "-c", "import os, ziglang; print(os.path.dirname(ziglang.__file__))"]
    found = subprocess.run(where, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        print("There is no C compiler here (cc, gcc, clang, $CC): installing the one of the package ziglang", flush=True)
        pip = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "-c",
            str(CONSTRAINTS),
            "ziglang",
        ]
        subprocess.run(pip, check=True)
        found = subprocess.run(where, capture_output=True, text=True, check=True)
    # The program itself, not `python -m ziglang`: pip hides installed packages from what it starts to build another one.
    return f"{shlex.quote(str(Path(found.stdout.strip()) / 'zig'))} cc"


def compiler_settings() -> dict[str, str]:
    """What to set in the environment; nothing where Python finds its compiler by itself."""
    if os.name == "nt" or is_there(os.environ.get("CC") or sysconfig.get_config_var("CC")):
        return {}
    if os.environ.get("CC"):
        raise SystemExit(f"error: $CC is {os.environ['CC']!r}, which is not to be found")
    compiler = next((name for name in ("cc", "gcc", "clang") if is_there(name)), None) or zig()
    return {"CC": compiler, "LDSHARED": f"{compiler} {SHARED.get(sys.platform, '-shared')}"}


def main() -> None:
    os.environ.update(compiler_settings())
    raise SystemExit(subprocess.run(sys.argv[1:], check=False).returncode)


if __name__ == "__main__":
    main()
