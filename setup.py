"""What pyproject.toml cannot say: how the compiled core is built."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, ExecError, PlatformError

PACKAGE = Path("src/sb3_extra_buffers")
NATIVE = PACKAGE / "_native"
SOURCES = [path.name for path in sorted(NATIVE.glob("*.c")) if not path.name.startswith(("fuzz_", "test_"))]

NO_COMPILER = """
sb3-extra-buffers has a part written in C, and compiling it failed (see above).
If there is no C compiler on this machine, install one:
    Debian, Ubuntu    apt install gcc libc6-dev python3-dev
    Fedora            dnf install gcc python3-devel
    macOS             xcode-select --install
    Windows           the "Desktop development with C++" workload of the Visual Studio Build Tools
or take the one that comes as a Python package:
    pip install ziglang
    CC="$(python -c 'import ziglang; print(ziglang.__path__[0])')/zig cc" pip install ...
"""


class BuildCore(build_ext):
    """Compiles the core, or says what is missing."""

    def build_extension(self, ext: Extension) -> None:
        if self.compiler.compiler_type == "msvc":
            ext.extra_compile_args += ["/std:c11", "/O2"]
        else:
            # Python's own flags come first. These promise nothing that the core does not keep: no -march, no fast-math.
            ext.extra_compile_args += ["-std=c11", "-D_GNU_SOURCE", "-O3", "-fno-strict-overflow", "-fvisibility=hidden"]
            ext.extra_compile_args += ["-g0"]  # Python's flags ask for debug information: ten times the code
            ext.extra_link_args += ["-pthread"]
        ext.extra_compile_args += os.environ.get("SB3XB_CFLAGS", "").split()
        ext.extra_link_args += os.environ.get("SB3XB_LDFLAGS", "").split()
        try:
            super().build_extension(ext)
        except (CompileError, ExecError, PlatformError) as error:
            print(NO_COMPILER, file=sys.stderr)
            raise SystemExit(f"error: {error}") from error


core = Extension(
    "sb3_extra_buffers.storage._core",
    sources=[str(PACKAGE / "storage" / "_core.pyx"), *(str(NATIVE / name) for name in SOURCES)],
    include_dirs=[str(NATIVE), np.get_include()],
    depends=["setup.py", *map(str, sorted([*NATIVE.glob("*.[hi]*"), *(PACKAGE / "storage").glob("*.pxi")]))],
    define_macros=[("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION")],
)

setup(ext_modules=[core], cmdclass={"build_ext": BuildCore})
