"""The documentation is true: its code and commands run, its links lead somewhere, every public name has an API page."""

import doctest
import importlib
import re
import shlex
import sys
import textwrap
import types
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
import yaml

import gossamer

ROOT = Path(__file__).parents[1]
GUIDES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [*GUIDES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
FENCE = re.compile(r"^( *)```([^\n`]*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
AT_HAND = {"digits", "two_moons"}  # data sets without files, small enough for an epoch here


class Block(NamedTuple):
    """A fenced block: the text after its backticks, its lines, and the line number of the first one."""

    info: str
    text: str
    line: int

    @property
    def language(self) -> str:
        return self.info.split()[0] if self.info else ""

    @property
    def title(self) -> str | None:
        found = re.search(r'title="([^"]+)"', self.info)
        return found[1] if found else None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(found[2].strip(), textwrap.dedent(found[3]), text.count("\n", 0, found.start(3)) + 1)
        for found in FENCE.finditer(text)
    ]


def runs(block: Block) -> bool:
    return block.language in ("python", "pycon", "console") and "no-run" not in block.info


LONG = {"command-line", "shift", "sweep", "paper", "tables", "prediction", "samplers"}  # pages whose code takes long
RUN = [
    pytest.param(page, marks=[pytest.mark.slow] * (page.stem in LONG), id=page.stem)
    for page in GUIDES
    if any(map(runs, blocks(page)))
]


@pytest.mark.parametrize("page", RUN)
def test_the_code_of_a_page_runs_from_top_to_bottom(page: Path, own_modules, monkeypatch):
    """In an empty folder: Python in one namespace, titled blocks as files, commands as in a shell.

    README is read in pieces, so each of its Python blocks gets a namespace of its own.
    """
    monkeypatch.syspath_prepend(own_modules)
    monkeypatch.delenv("GOSSAMER_DATA", raising=False)
    module = types.ModuleType("a_page_of_the_documentation")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # so that what is defined there can be pickled
    torch.manual_seed(0)
    for block in blocks(page):
        if page.name == "README.md":
            module.__dict__.clear()
        if block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and runs(block):
            # Empty lines before it, so that a traceback names the line of the page.
            exec(compile("\n" * (block.line - 1) + block.text, str(page), "exec"), module.__dict__)
        elif block.language == "pycon":
            check_outputs(block, page, module.__dict__)
        elif block.language == "console":
            for command in commands(block.text):
                run(command, f"{page.name}: gossamer {shlex.join(command)}")


def check_outputs(block: Block, page: Path, namespace: dict) -> None:
    test = doctest.DocTestParser().get_doctest(block.text, {}, page.name, str(page), block.line - 1)
    test.globs = namespace
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    runner.run(test, out=said.append, clear_globs=False)
    assert runner.failures == 0, "".join(said)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each ``$ gossamer …`` line, up to a redirection or pipe."""
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line.removeprefix("$ "), comments=True) if line.startswith("$ ") else []
        if words[:1] == ["gossamer"]:
            ends = [i for i, word in enumerate(words) if word in (">", "|", "&&")]
            yield words[1 : min(ends, default=len(words))]


def run(command: list[str], label: str) -> None:
    from gossamer.lab.cli import main

    quick = ["--epochs=1", "--n_draws=2"]
    if command[0] == "train" and not {"--resume", "--help", "--print_config"} & set(command):
        # Data sets in files are not available here; printing the settings still checks the flags.
        in_file = {word for word in command[1:3] if word in gossamer.data.names()} - AT_HAND
        command = [*command, *(["--print_config"] if in_file else [*quick, "--quiet"])]
    elif command[0] == "compare":
        command = [*command, *quick, "--seeds=1", "--quiet"]
    elif command[0] == "sweep":
        command = [*command, *quick, "--trials=2", "--quiet"]
    assert main([*command, "--debug"]) == 0, label


def test_blocks_that_do_not_run_are_rare():
    skipped = [f"{page.name}, line {block.line}" for page in GUIDES for block in blocks(page) if "no-run" in block.info]
    assert len(skipped) <= 3, skipped


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_citation_file_has_what_the_format_requires():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["cff-version"] == "1.2.0"
    for part in [citation, *citation["references"]]:
        assert part["title"]
        assert part["authors"]
    assert citation["message"]


def without_code(page: Path) -> str:
    return re.sub(r"`[^`\n]*`", "`code`", FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as both mkdocs and GitHub make them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_somewhere(page: Path):
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page))
    for link in [link for link in links if not re.match(r"[a-z]+:", link)]:
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        assert ROOT in target.parents, f"{page.name} links to {link}, outside the repository"
        assert not anchor or anchor in anchors(target), f"{page.name} links to {link}: no such heading"


def test_every_page_is_in_the_navigation():
    named = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")}


def documented() -> list[object]:
    """What the API pages show: the objects they name, and everything that a named module exports."""
    found: list[object] = []
    for page in sorted((ROOT / "docs" / "api").glob("*.md")):
        for name in re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE):
            thing = resolve(name)
            exported = getattr(thing, "__all__", []) if isinstance(thing, types.ModuleType) else []
            found += [thing, *(getattr(thing, member) for member in exported)]
    return found


def resolve(name: str) -> object:
    """The object with a dotted name; the module if a module and a function share the name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError:
        parent, _, last = name.rpartition(".")
        return getattr(resolve(parent), last)


def test_every_public_name_has_a_place_in_the_api_pages():
    known = {id(thing) for thing in documented()}
    assert not [name for name in gossamer.__all__ if id(getattr(gossamer, name)) not in known]


# Users do not call these modules; what gossamer itself exports of them is on its own page.
INTERNAL = {"compaction"}


def test_the_api_pages_are_about_modules_that_users_call():
    pages = {page.stem for page in (ROOT / "docs" / "api").glob("*.md")}
    assert not pages & INTERNAL
    for page in pages - {"index", "gossamer", "criteria", "allocation"}:
        importlib.import_module(page if page.startswith("gossamer_") else f"gossamer.{page}")
