"""Links in the README and the documentation lead somewhere: files, headings, and addresses that are at least well-formed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from doc_blocks import DOCS, ROOT

pytest.importorskip("myst_parser")
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.anchors.index import slugify

PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md")), *sorted(ROOT.glob("examples/*.md"))]
_HTML_LINK = re.compile(r"""<(?:a|img|source|video)\b[^>]*?\b(?:href|src)=["']([^"']+)["']""")
_DIRECTIVE = re.compile(r"\{(\w+)\}\s*(\S*)")
_MARKDOWN = MarkdownIt("commonmark").enable("table")


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def links(text: str) -> Iterator[str]:
    """
    Find the links of a page, those in figures and notes included; what stands in code is not a link.

    :param text: Markdown
    :return: Their targets
    """
    for token in _flat(_MARKDOWN.parse(text)):
        if token.type == "link_open":
            yield str(token.attrs["href"])
        elif token.type == "image":
            yield str(token.attrs["src"])
        elif token.type in ("html_block", "html_inline"):
            yield from _HTML_LINK.findall(token.content)
        elif token.type == "fence" and (directive := _DIRECTIVE.match(token.info)):
            name, argument = directive.groups()
            if name in ("figure", "image", "include"):
                yield argument
            if name not in ("eval-rst", "toctree", "code-block"):
                yield from links(token.content)


@cache
def anchors(page: Path) -> set[str]:
    """
    List the headings of a page, as GitHub and MyST name them in links.

    :param page: Markdown file
    :return: Anchors
    """
    tokens = _MARKDOWN.parse(page.read_text(encoding="utf-8"))
    # myst_heading_anchors in conf.py: deeper headings have no anchor on the website.
    heads = [
        tokens[i + 1] for i, token in enumerate(tokens) if token.type == "heading_open" and token.tag in ("h1", "h2", "h3")
    ]
    found: set[str] = set()
    for head in heads:
        slug = slugify("".join(child.content for child in head.children or [] if child.type in ("text", "code_inline")))
        number, unique = 0, slug
        while unique in found:
            number += 1
            unique = f"{slug}-{number}"
        found.add(unique)
    return found


def problem_of(target: str, page: Path) -> str | None:
    """
    Look for what is wrong with a link.

    :param target: Where it leads
    :param page: Where it stands
    :return: What is wrong, None if nothing is
    """
    parts = urlsplit(target)
    if parts.scheme:
        well_formed = (
            parts.scheme == "https" and re.fullmatch(r"[\w-]+(\.[\w-]+)+", parts.netloc) and not re.search(r"\s", target)
        )
        return None if well_formed else "not a well-formed https address"
    if parts.netloc or parts.path.startswith("/"):
        return "neither an address nor a relative path"
    goal = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if not goal.is_relative_to(ROOT):
        return "outside of the repository"
    if not goal.exists():
        return "no such file"
    if parts.fragment and (goal.suffix != ".md" or parts.fragment not in anchors(goal)):
        return f"no such heading; there are {sorted(anchors(goal))}" if goal.suffix == ".md" else "no headings there"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    problems = {target: problem_of(target, page) for target in links(page.read_text(encoding="utf-8"))}
    assert not {target: problem for target, problem in problems.items() if problem}


def test_all_kinds_of_links_are_found() -> None:
    text = """
[a](a.md) and ![b](b.png), `[not](this.md)`, <https://c.org>, <img alt="" src="d.gif">

| table |
| --- |
| [e](e.md#f) |

```{figure} f.png
:alt: nothing

A caption with [g](g.md).
```

```python
"[not](this.md)"
```
"""
    assert list(links(text)) == ["a.md", "b.png", "https://c.org", "d.gif", "e.md#f", "f.png", "g.md"]


@pytest.mark.parametrize(
    "target",
    [
        "nothing.md",
        "install.md#nothing",
        "#nothing",
        "_static/group.png#x",
        "/docs/install.md",
        "../../x",
        "http://a.org",
        "https://a",
    ],
)
def test_broken_links_are_noticed(target: str) -> None:
    assert problem_of(target, DOCS / "index.md")


def test_good_links_are_not() -> None:
    for target in (
        "install.md",
        "install.md#extras",
        "#three-promises-in-this-order",
        "../README.md#the-change",
        "https://a.org/b#c",
    ):
        assert problem_of(target, DOCS / "index.md") is None
