"""The API page is complete: every public name has its place in it, and the website builds without a warning."""

from __future__ import annotations

import importlib
import pkgutil
import re
import subprocess
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from doc_blocks import DOCS, ROOT

import sb3_extra_buffers

# The command line is a program, not a library: its page is its reference.
NOT_A_LIBRARY = ("sb3_extra_buffers.cli", "sb3_extra_buffers.__main__")


def _is_private(name: str) -> bool:
    return any(part.startswith("_") for part in name.split(".")[1:]) or name.startswith(NOT_A_LIBRARY)


def public_names() -> Iterator[tuple[str, str]]:
    """
    List what users may import: ``__all__`` of every module that has one; in a package that exports nothing itself, what its
    modules define.

    :return: Modules and names
    """
    for found in pkgutil.walk_packages(sb3_extra_buffers.__path__, "sb3_extra_buffers."):
        if _is_private(found.name):
            continue
        module = importlib.import_module(found.name)
        if hasattr(module, "__all__"):
            yield from ((found.name, name) for name in module.__all__ if not name.startswith("__"))
        elif not found.ispkg and not any(hasattr(package, "__all__") for package in _packages_around(found.name)):
            yield from ((found.name, name) for name in _defined_in(module))


def _packages_around(name: str) -> Iterator[ModuleType]:
    """The packages that a module lies in, except for the one that holds all."""
    parts = name.split(".")
    for end in range(2, len(parts)):
        yield sys.modules[".".join(parts[:end])]


def _defined_in(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", None) == module.__name__
    ]


def documented() -> Iterator[tuple[Path, str, str]]:
    """
    List what the pages document.

    :return: Page, module and name
    """
    for page in sorted(DOCS.glob("*.md")):
        current = ""
        for directive, name in re.findall(
            r"^\.\. (currentmodule|auto\w+):: (\S+)", page.read_text(encoding="utf-8"), re.MULTILINE
        ):
            if directive == "currentmodule":
                current = name
            elif directive == "automodule":
                module = importlib.import_module(name)
                yield from ((page, name, member) for member in getattr(module, "__all__", _defined_in(module)))
            else:
                place, _, member = (name if name.startswith("sb3_extra_buffers.") else f"{current}.{name}").rpartition(".")
                yield page, place, member


def _value(module: str, name: str) -> Any:
    return getattr(importlib.import_module(module), name)


@pytest.fixture(scope="module", autouse=True)
def _libraries() -> None:
    pytest.importorskip("sb3_contrib")


def test_every_public_name_is_documented() -> None:
    # A name may be exported in several places; it is described once.
    known = [(name, _value(module, name)) for _, module, name in documented()]
    missing = [
        f"{module}.{name}"
        for module, name in public_names()
        if not any(name == other and _value(module, name) is value for other, value in known)
    ]
    assert not missing, "describe it in docs/api.md"


def test_what_is_documented_elsewhere_is_linked_from_the_api_page() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    pages = {page.name for page, _, _ in documented()} - {"api.md"}
    assert not [page for page in pages if f"({page}" not in text]


def test_public_names_are_found() -> None:
    names = set(public_names())
    assert ("sb3_extra_buffers.compressed", "CompressedReplayBuffer") in names
    assert ("sb3_extra_buffers.training_utils", "PrioritizedDQN") in names
    assert not any(module.startswith("sb3_extra_buffers.storage.") for module, _ in names)


@pytest.mark.slow
def test_the_website_builds_and_has_every_name(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run([*command, "-d", str(tmp_path / "doctrees")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    head, _, packed = (tmp_path / "objects.inv").read_bytes().partition(b"zlib")
    listed = zlib.decompress(packed.partition(b"\n")[2]).decode()
    names = {line.split()[0].rpartition(".")[2] for line in listed.splitlines() if " py:" in line}
    missing = {name for _, name in public_names()} - names
    assert head and not missing
