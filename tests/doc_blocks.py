"""The code of a page of the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^\n]+) -->\n+)?```(?P<language>\w+)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL
)


class Block(NamedTuple):
    """
    A code block.

    :param language: What stands behind its fence
    :param text: The code
    :param line: Number of its first line in the page
    :param not_run: Why no test runs it: the text of a comment ``<!-- not run: … -->`` above the fence; None without one
    """

    language: str
    text: str
    line: int
    not_run: str | None


def blocks(page: str) -> Iterator[Block]:
    """
    Find the code blocks of a page.

    :param page: Name of the file, from the folder of the documentation
    :return: The blocks
    """
    text = (DOCS / page).read_text(encoding="utf-8")
    for found in _BLOCK.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        code = found["text"]
        if found["language"] == "diff":  # of Python code: what it is afterwards
            code = "".join(f"{row[1:]}\n" for row in code.splitlines() if not row.startswith("-"))
        yield Block(found["language"], code, line, found["reason"])


def write_files(page: str, folder: Path) -> None:
    """
    Write the blocks that begin with the name of a file, as a comment, to that file.

    :param page: Name of the page
    :param folder: Where to
    """
    for block in blocks(page):
        if name := re.match(r"# (\S+\.\w+)\n", block.text):
            (folder / name[1]).write_text(block.text, encoding="utf-8")


def _typed(block: Block) -> str:
    """What somebody types: all of a ``bash`` block; of a ``console`` block, which shows answers too, what follows a prompt."""
    if block.language == "console":
        return "".join(line[2:] for line in block.text.splitlines(keepends=True) if line.startswith("$ "))
    return block.text if block.language == "bash" else ""


def commands(page: str, program: str | None = None) -> list[list[str]]:
    """
    Find the commands of a page, in their order.

    :param page: Name of the page
    :param program: Only those of this program
    :return: Their words
    """
    shell = "".join(_typed(block) for block in blocks(page)).replace("\\\n", "")
    lines = [shlex.split(line, comments=True) for line in shell.splitlines()]
    return [words for words in lines if words and program in (None, words[0])]
