"""The code of a page of the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page: str) -> Iterator[tuple[str, str]]:
    """
    Find the code blocks of a page.

    :param page: Name of the file
    :return: Language and text of each
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    yield from re.findall(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def write_files(page: str, folder: Path) -> None:
    """
    Write the blocks that begin with the name of a file, as a comment, to that file.

    :param page: Name of the page
    :param folder: Where to
    """
    for _, text in blocks(page):
        if name := re.match(r"# (\S+\.\w+)\n", text):
            (folder / name[1]).write_text(text, encoding="utf-8")


def commands(page: str) -> list[list[str]]:
    """
    Find the commands of a page that start Python, in their order.

    :param page: Name of the page
    :return: Their words
    """
    shell = "".join(text for language, text in blocks(page) if language == "bash").replace("\\\n", "")
    return [shlex.split(line) for line in shell.splitlines() if line.startswith("python ")]
