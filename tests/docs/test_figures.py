"""
No measured number stands in a sentence by hand: it would be wrong after the next measurement, and nobody would notice.

Numbers with a unit come from a result file, between markers that ``benchmarks/report.py`` renews (``test_report.py`` looks
whether it did), or are listed here with the reason why no measurement changes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from doc_blocks import DOCS, ROOT

pytest.importorskip("myst_parser")
from markdown_it import MarkdownIt
from markdown_it.token import Token

PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]


class Constant(NamedTuple):
    """
    A number that no measurement changes.

    :param pages: Where it stands
    :param phrase: The number with enough words around it to be found nowhere else
    :param why: Where it comes from
    """

    pages: str
    phrase: str
    why: str


CONSTANTS = [
    Constant("buffers.md codecs.md faq.md gpu-buffers.md", "under 512 bytes", "raw_below of the buffers"),
    Constant("faq.md results.md", "only 29 MB", "128 steps of 8 environments of 28,224 bytes"),
    Constant("faq.md", "56 GB with SB3", "a million transitions of twice 28,224 bytes"),
    Constant("architecture.md faq.md saving.md", "about 20 bytes", "action, reward, done and time-out of a slot"),
    Constant("saving.md", "a file of 20 MB", "a million of them"),
    Constant("saving.md", "more than 48 MB", "what a save copies of plain arrays"),
    Constant("saving.md", "From 1 GB on", "when a save shows a progress bar"),
    Constant("reliability.md", "of 512 bytes or 4 KB", "pieces of the simulated disk"),
    Constant("reliability.md", "is killed 30 times of", "how often the tests kill a process"),
    Constant("reliability.md", "a ring of 5 GB", "the defaults of soak.py"),
    Constant("reliability.md", "a limit of 1 GB for", "the same"),
    Constant("buffers.md results.md", "up to 1 GB", "M_TRIM_THRESHOLD that keep_freed_memory sets"),
    Constant("contrib.md", "82 MB of masks", "512 steps of 8 environments, 5,000 float32"),
    Constant("contrib.md", "2.6 MB in ours", "the same in bits"),
    Constant("migration.md", "73.9 MB", "published for another package"),
    Constant("prioritized.md", "16 to 32 bytes", "the sum tree: two doubles for each leaf, leaves a power of two"),
    Constant("gpu-buffers.md", "leave a quarter of it free", "advice"),
    Constant("cluster.md", "from 40 % down", "the shares of Ape-X"),
    Constant("cluster.md", "more than 100 KB", "from where on Ray uses its object store"),
    Constant("command-line.md", "at most 1.05 times", "what --speed 1.05 means"),
    Constant("command-line.md", "80 % of the memory", "what recommend leaves to the rest of the machine"),
    Constant("command-line.md", "5 % more time", "the price of memory in recommend"),
    Constant("command-line.md", "a hundredth of a training step", "an example, not a measurement"),
    Constant("how-it-works.md", "28,224 bytes", "four frames of 84x84"),
    Constant("how-it-works.md", "eight times smaller", "sixteen frames, of which each transition adds one new"),
    Constant("how-it-works.md", "64 bytes at a time", "width of the comparison"),
    Constant("how-it-works.md", "an eighth of the frame", "largest patch"),
    Constant("how-it-works.md architecture.md", "half times as much as a key frame", "when a new key frame is stored"),
    Constant("architecture.md how-it-works.md", "an eighth of the ring", "rows_of_chunk"),
    Constant("architecture.md", "8,192 places of 4 bytes at most", "the catalogue of objects"),
    Constant("architecture.md", "1 MB of observations or more", "from where on a read is shared"),
    Constant("architecture.md", "shared from 2 MB on", "the same for a read that was not announced"),
    Constant("architecture.md", "tables take 28 KB", "what a codebook is expanded to"),
    Constant("architecture.md results.md", "elow 1 MB", "reads that keep the GIL"),
    Constant("faq.md format.md", "2, 4 or 8 bytes", "elements that a table of values may hold"),
    Constant("how-it-works.md", "at least 2.5 % smaller", "GAIN of pictures.c"),
    Constant("how-it-works.md", "less than 2 KB", "LEAST_BYTES of pictures.c"),
    Constant("how-it-works.md", "a fifth smaller", "what a codec has to gain in pictures.c"),
    Constant("architecture.md", "at most 64 MB", "size of the pool"),
    Constant("architecture.md results.md", "4 KB", "pages of the system"),
    Constant("results.md", "into each 2 MB of", "huge pages of the system"),
    Constant("results.md", "until 2 MB have", "the same"),
    Constant("format.md", "the 8 bytes", "layout of the format"),
    Constant("training-utilities.md", "Megabytes are 1,000,000 bytes", "what the unit means"),
]

_GENERATED = re.compile(r"<!-- table: [\w-]+ -->.*?<!-- end -->|<!-- fact:\s[^<>]*-->.*?<!-- / -->", re.DOTALL)
_NUMBER = r"\d[\d.,]*(?:(?: to |-)\d[\d.,]*)?"
_UNIT = r"(?:x(?!\w)|%|(?:[kKMG]i?)?B\b|µs\b|ms\b|s\b|(?:second|minute|hour|day|byte|megabyte|gigabyte)s?\b|times\b)"
_WORDS = "half|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|twenty|fifty|hundred|thousand|dozen"
_PARTS = r"half|third|quarter|fifth|sixth|seventh|eighth|ninth|tenth|twelfth|[\w-]*(?:tieth|hundredth|thousandth)|\d+th"
MEASURED = re.compile(
    rf"{_NUMBER}\s*{_UNIT}"
    rf"|\b(?:{_WORDS})(?: to (?:{_WORDS}))? times (?:as|smaller|larger|faster|slower|longer|less|more|the)\b"
    rf"|\b(?:an?|one|to|about) (?:{_PARTS})\b(?!-)",
    re.IGNORECASE,
)
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def _texts(tokens: list[Token]) -> Iterator[str]:
    """The text of paragraphs, headings, list items, cells and pictures; code is left out."""
    for token in tokens:
        if token.type == "inline":
            yield "".join(_inline(token.children or []))
        elif token.type == "fence" and re.match(r"\{(?:figure|note|tip|warning|important)\}", token.info):
            yield from _texts(_MARKDOWN.parse(re.sub(r"^:(?!alt:)[\w-]+:.*$", "", token.content, flags=re.MULTILINE)))


def _inline(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        if token.type == "text":
            yield token.content
        elif token.type in ("softbreak", "hardbreak"):
            yield " "
        elif token.type == "code_inline":
            yield "`…`"
        else:
            yield from _inline(token.children or [])


def prose(text: str) -> str:
    """
    Take what a page says in sentences and tables written by hand.

    :param text: Markdown
    :return: Its paragraphs, without code and without what is generated
    """
    return "\n".join(_texts(_MARKDOWN.parse(_GENERATED.sub("…", text))))


def by_hand(text: str, page: str = "") -> list[str]:
    """
    Find numbers that may have been measured.

    :param text: Markdown
    :param page: Name of the page, whose constants are left out
    :return: The numbers with what stands around them
    """
    said = prose(text)
    for constant in CONSTANTS:
        if page in constant.pages.split():
            said = said.replace(constant.phrase, "…")
    return [said[max(0, found.start() - 50) : found.end() + 30].replace("\n", " | ") for found in MEASURED.finditer(said)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_measured_number_stands_by_hand(page: Path) -> None:
    found = by_hand(page.read_text(encoding="utf-8"), page.name)
    assert not found, (
        "take it from a result file (benchmarks/kit/facts.py), say it without a number, "
        "or list it in CONSTANTS if no measurement changes it"
    )


# What once stood in the pages, and was wrong.
STALE = [
    "`add` takes\n1.4 times as long because of the checks",
    "transitions takes 11.5 MB instead of",
    "2.3 GB of observations",
    "a batch of 32 takes 3 to 4 times as long as with SB3",
    "- 70 to 80 % of the memory",
    "| `delta` | 0.98x to 0.98x |",
    "Camera pictures shrink to a ninth, but",
    "between a five-hundredth and the rest",
    "they shrink to a seventieth and",
    "## a quarter of SB3's time",
    "three times smaller",
    "about 217 µs, or two",
    "in less than 2 minutes",
    "```{figure} a.png\n:alt: both stay below 1 GB.\n\nA caption.\n```",
    "```{figure} a.png\n:width: 640px\n\nIt takes 5 ms.\n```",
    "![It takes 5 ms](a.png)",
]


@pytest.mark.parametrize("text", STALE)
def test_stale_numbers_would_have_been_found(text: str) -> None:
    assert by_hand(text)


@pytest.mark.parametrize(
    "text",
    [
        "```text\n2.3 GB of observations in 9.7 MB\n```",
        "with `--memory 2GB` and `--speed 1.2 times`",
        "frames of 160x120 pixels, 4 games, SB3 2.7, 40,000 transitions, several times as long, a third-party library",
        "```{figure} a.png\n:width: 50%\n\nA caption.\n```",
        "it takes <!-- fact: gray-share -->17 %<!-- / --> of it",
        "it takes <!-- fact:\ndqn-training -->0.25<!-- / --> times as long",
        "<!-- table: memory -->\n\n| 10 MB |\n| --- |\n| 5 % |\n\n<!-- end -->",
    ],
)
def test_others_are_not(text: str) -> None:
    assert by_hand(text) == []
