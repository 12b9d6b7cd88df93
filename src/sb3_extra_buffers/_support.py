"""Small helpers that several packages need. The lowest layer: it imports nothing of this package."""

from __future__ import annotations

import contextlib
import ctypes
import difflib
import gc
import importlib
import os
import re
import secrets
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# -- amounts and words ---------------------------------------------------------------------------------------------------

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}


def parse_bytes(text: str) -> int:
    """
    Read an amount of memory: ``"2GB"`` is 2 * 10^9 bytes, ``"2GiB"`` is 2 * 2^30. Also ``"500 MB"``, ``"1.5G"`` or ``"100"``.

    Raises ``ValueError`` for anything else.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]i?)?b?\s*", text.lower())
    if match is None:
        raise ValueError(f"{text!r} is not an amount of memory; write something like 500MB, 4GB or 1.5GiB")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def format_bytes(count: float) -> str:
    """Write a number of bytes with three significant digits and a decimal unit: ``"2.85 MB"``."""
    units = ["B", "kB", "MB", "GB", "TB"]
    while abs(count) >= 999.5 and len(units) > 1:
        count /= 1000
        units.pop(0)
    digits = 0 if units[0] == "B" or abs(count) >= 99.95 else 1 if abs(count) >= 9.995 else 2
    return f"{count:.{digits}f} {units[0]}"


def counted(number: int, thing: str) -> str:
    """Write a number of things: ``"1 episode"``, ``"2 episodes"``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def nearest(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Words that may have been meant, the likeliest first."""
    return difflib.get_close_matches(word, list(known), n=most, cutoff=cutoff)


# -- optional libraries --------------------------------------------------------------------------------------------------


def install_hint(extra: str) -> str:
    """
    How to install an extra of this package.

    From a clone, never by our name: the package that has it on PyPI is another one, and pip would fetch that.
    """
    return f'pip install ".[{extra}]" in a clone of the sb3-extra-buffers repository'


def importable(*modules: str) -> bool:
    """Try to import modules, parents before children. Nothing is cached: an import may be blocked at any time."""
    try:
        for module in modules:
            importlib.import_module(module)
    except ImportError:
        return False
    return True


def need(module: str, extra: str, purpose: str) -> Any:
    """Import a library, or raise ``ImportError`` that says what to install."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{purpose} needs {module.partition('.')[0]}: {install_hint(extra)}") from error


def with_progress(steps: Iterable[T], total: int, title: str, unit: str, show: bool) -> Iterator[T]:
    """Show progress on standard error, if it is a terminal and tqdm is installed."""
    if show and sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            pass
        else:
            steps = tqdm(steps, total=total, desc=title, unit=unit)
    return iter(steps)


# -- files ---------------------------------------------------------------------------------------------------------------

_LONGEST_SUFFIX = 16  # bytes; writers choose the format by suffix, and none is longer


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """
    Write a file beside its place; it takes its place when the context is left without an error, and else is removed.

    Yields where to write it: an empty file with the same suffix. A file that is replaced keeps its mode, and a link still
    points at it. A new one gets the mode that ``open`` gives.
    """
    target = Path(os.path.realpath(path))
    try:
        old = target.stat()
    except (FileNotFoundError, NotADirectoryError):
        old = None
    if old is not None and stat.S_ISDIR(old.st_mode):
        raise IsADirectoryError(f"{target} is a folder; give the name of a file")
    if old is not None and not stat.S_ISREG(old.st_mode):
        raise FileExistsError(f"{target} is a device or a pipe, which cannot be replaced; give the name of a file")
    if not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {target.parent}; create it first")
    # The name of the target may be as long as names can be.
    suffix = Path(path).suffix
    suffix = suffix if len(os.fsencode(suffix)) <= _LONGEST_SUFFIX else ""
    beside = target.with_name(f".sb3-extra-buffers-{secrets.token_hex(6)}{suffix}")
    try:
        # Never more readable than the file it replaces.
        os.close(os.open(beside, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if old is None else 0o600))
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(target)) from error  # it is not about the name beside
    try:
        yield beside
        with open(beside, "rb+") as file:
            os.fsync(file.fileno())
        if old is not None:
            _make_alike(beside, old)
        os.replace(beside, target)
    finally:
        beside.unlink(missing_ok=True)
    if os.name == "posix":  # Windows does not open folders, and needs no such thing
        _sync_folder(target.parent)


def _make_alike(path: Path, old: os.stat_result) -> None:
    if os.name == "posix":
        new = path.stat()
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(path, old.st_uid, old.st_gid)
    path.chmod(stat.S_IMODE(old.st_mode))


def _sync_folder(folder: Path) -> None:
    # So that the new name survives a power cut, too. Some network file systems do not sync folders.
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# -- memory --------------------------------------------------------------------------------------------------------------


def resident_bytes() -> int:
    """Resident memory of this process, as ``top`` shows it; it takes microseconds on Linux, and elsewhere needs psutil."""
    if sys.platform == "linux":
        try:
            with open("/proc/self/statm", "rb") as statm:
                return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        except OSError:  # a container without /proc
            pass
    import psutil

    return int(psutil.Process().memory_info().rss)


def resident_bytes_after_release() -> int:
    """Give freed memory back to the system first, so that what is allocated next cannot hide in it."""
    gc.collect()
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl does not
        if trim is not None:
            trim(0)
    return resident_bytes()


def container_bytes(root: Path = Path("/")) -> int | None:
    """
    The memory that the control groups of this process allow it: those of containers, of batch systems, of systemd.

    ``root`` is where the file system begins. None if nothing limits it.
    """
    limits = []
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:  # not Linux
        return None
    for group in groups:
        _, controllers, path = group.split(":", 2)
        if not controllers:
            folder, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            folder, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        # A limit of any group above counts, too. Inside a container, the first folder is that of the container.
        for part in ("", *path.strip("/").split("/")):
            folder = folder / part
            with contextlib.suppress(OSError, ValueError):  # no limit is "max"; the path may be that outside of a container
                limits.append(int((folder / name).read_text()))
    return min(limits, default=None)


def machine_bytes() -> int:
    """How much memory there is, for this container if it has a limit."""
    import psutil

    total = int(psutil.virtual_memory().total)
    limit = container_bytes()
    return total if limit is None else min(total, limit)


def free_bytes() -> int:
    """How much memory can be had without swapping."""
    import psutil

    return min(int(psutil.virtual_memory().available), machine_bytes())


# -- algorithms ----------------------------------------------------------------------------------------------------------

ALGORITHMS = {
    **dict.fromkeys(("A2C", "DDPG", "DQN", "PPO", "SAC", "TD3"), "stable_baselines3"),
    **dict.fromkeys(("CrossQ", "MaskablePPO", "QRDQN", "RecurrentPPO", "TQC", "TRPO"), "sb3_contrib"),
    **dict.fromkeys(("CompressedRecurrentPPO", "PrioritizedDQN"), "sb3_extra_buffers"),
}
"""Classes that collect rollouts, and the packages that they come from."""
