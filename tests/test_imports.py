"""Imports go one way: each room of the package sees only the rooms to its left (CONTRIBUTING.md)."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "gossamer"

ORDER = [
    {"files", "_text", "distributed"},
    {"types", "schedules", "conformal"},
    {"kernels", "priors", "likelihoods"},
    {"layers"},
    {"sparsity", "optim", "posterior"},
    {"compaction", "metrics"},
    {"adaptation"},
    {"methods"},
    {"train", "evaluate", "deploy"},
    {"estimators"},
    {"lab"},
    {"__main__"},
]

# Rooms beside the line, and all that they may import.
BESIDE = {
    "models": {"types", "_text"},
    "data": {"files", "types", "_text", "likelihoods"},
}

# Which rooms of the line may import the rooms beside it.
USERS_OF_BESIDE = {
    "estimators": set(BESIDE),
    "lab": set(BESIDE),
}

# Room -> rooms of its own group that it may import nevertheless, each with its reason.
EXCEPTIONS = {
    "priors": {"kernels"},  # the cheaper autograd Function
    "schedules": {"types"},  # the alias Schedule, in signatures
}

# The rooms of the laboratory, in the same way: a report is made of records alone.
LAB = [{"record"}, {"report"}, {"runs"}, {"cli"}]


def allowed(room: str) -> set[str]:
    if room in BESIDE:
        return BESIDE[room] | {room}
    place = next(i for i, group in enumerate(ORDER) if room in group)
    to_the_left = set().union(*ORDER[:place])
    return to_the_left | {room} | USERS_OF_BESIDE.get(room, set()) | EXCEPTIONS.get(room, set())


def imported_modules(path: Path) -> Iterator[str]:
    """Every module of ours that a file imports, anywhere in it, as ``room.module``; ours without a room as ``""``."""
    package = ("gossamer", *path.relative_to(SOURCE).parent.parts)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = [*package[: len(package) + 1 - node.level]] if node.level else []
            base += [node.module] if node.module else []
            names = [".".join([*base, alias.name]) for alias in node.names]
        else:
            continue
        for name in names:
            top, _, rest = name.partition(".")
            if top == "gossamer" and rest != "__version__":
                yield rest


FILES = sorted(path for path in SOURCE.rglob("*.py") if path != SOURCE / "__init__.py")


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_a_room_imports_only_rooms_to_its_left(path: Path):
    room = room_of(path)
    assert room in set(BESIDE).union(*ORDER), f"{room} has no place in the import order: give it one in this file"
    wrong = {name for name in imported_modules(path) if name.split(".")[0] not in allowed(room)}
    assert not wrong, f"{room} may import {sorted(allowed(room))} of gossamer, not {sorted(wrong)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_private_modules_are_for_their_own_room(path: Path):
    wrong = {
        name
        for name in imported_modules(path)
        if name.split(".")[0] != room_of(path) and any(part.startswith("_") for part in name.split(".")[1:])
    }
    assert not wrong, f"{room_of(path)} imports {sorted(wrong)}"


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if room_of(path) == "lab" and len(path.relative_to(SOURCE).parts) > 2],
    ids=lambda path: path.relative_to(SOURCE).as_posix(),
)
def test_a_room_of_the_laboratory_imports_only_rooms_to_its_left(path: Path):
    room = path.relative_to(SOURCE).parts[1]
    place = next(i for i, group in enumerate(LAB) if room in group)
    wrong = {
        name
        for name in imported_modules(path)
        if name.startswith("lab.") and name.split(".")[1] in set().union(*LAB[place + 1 :])
    }
    assert not wrong, f"lab.{room} imports {sorted(wrong)}"


def test_exceptions_are_used():
    used = {(room_of(path), name.split(".")[0]) for path in FILES for name in imported_modules(path)}
    unused = {(room, other) for room, others in EXCEPTIONS.items() for other in others} - used
    present = {room_of(path) for path in FILES}
    assert not {(room, other) for room, other in unused if room in present}


def test_every_folder_of_modules_is_a_package():
    """Without its ``__init__.py`` pytest would import a folder a second time, under another name, for its doctests."""
    folders = {path.parent for path in SOURCE.rglob("*.py")}
    assert not {folder.name for folder in folders if not (folder / "__init__.py").exists()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_the_package_does_without_the_instruments_of_its_authors(path: Path):
    """``benchmarks`` and ``reproductions`` are not installed."""
    nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {name for name in names if name.split(".")[0] in ("benchmarks", "reproductions")}


def test_no_module_is_called_utils():
    names = {path.stem for path in SOURCE.rglob("*")}
    assert not names & {"utils", "util", "helpers", "misc", "common"}


def test_the_package_imports_what_needs_more_than_torch_only_when_asked():
    """``gossamer/__init__.py`` may import anything, but ``train`` and what rests on it only inside a function."""
    eager = set()
    for node in ast.parse((SOURCE / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ImportFrom):
            base = node.module or ""
            eager |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            eager |= {alias.name for alias in node.names}
    lazy = {"train", "evaluate", "deploy", "estimators", "lab"}
    assert not {name for name in eager if name.removeprefix("gossamer.").split(".")[0] in lazy}


def test_contributing_shows_this_order():
    page = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8")
    line = " ".join(page.split("```")[1].split())
    assert [set(group.split(", ")) for group in line.split(" → ")] == ORDER[:-1]


def test_only_the_command_imports_the_package_of_sweeps():
    users = {path.relative_to(SOURCE).parent for path in FILES if "gossamer_sweep" in path.read_text(encoding="utf-8")}
    assert users == {Path("lab", "cli")}
