"""What works on a converted network, in gossamer and in other libraries: the tables of ``docs/citizen.md``.

    python -m benchmarks.citizen results/citizen.json   # run our tests (about a minute) and store their outcomes
    python -m benchmarks.citizen --pretrained           # convert trained weights with the peers that are installed

Our column is made of the outcomes of the tests named in each row, the columns of the others are stored beside it with
their versions. ``make figures`` writes the page.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from gossamer import __version__
from gossamer._text.tables import Table
from gossamer.lab.record import write_atomically

__all__ = ["FILES", "KIND", "citizen_tables", "outcome", "run_tests"]

KIND = "citizen"
OURS = "Gossamer"
FILES = {"C": "test_conversion.py", "Z": "test_citizen.py", "G": "test_citizen_graphs.py"}
FOLDER = Path(__file__).parents[1] / "tests" / "contract"


def citizen_tables(content: Mapping[str, Any]) -> dict[str, Table]:
    """The checks on all libraries, and those on ours alone, by the names of their places in the page.

    Example:
        >>> row = {"check": "deepcopy", "test": "Z test_deepcopy", "outcomes": {"blitz": "FAIL"}}
        >>> tests = {"test_deepcopy": {"passed": 9}}
        >>> citizen_tables({"peers": {"blitz": "0.2.8"}, "checks": [row], "more": [], "tests": tests})["citizen"].rows
        [['deepcopy', 'FAIL', 'ok', 'Z `test_deepcopy`']]
    """
    peers, tests = content["peers"], content["tests"]

    def line(row: Mapping[str, Any], others: list[str]) -> list[str]:
        file, test = row["test"].split()
        return [row["check"], *others, _cell(row, tests.get(test, {})), f"{file} `{test}`"]

    checks = [line(row, [row["outcomes"].get(peer, "–") for peer in peers]) for row in content["checks"]]
    more = [line(row, []) for row in content["more"]]
    head = ["check", *peers, OURS, "test"]
    return {
        "citizen": Table("Checks", "", head, checks, len(head)),
        "citizen-more": Table("Also checked", "", ["check", OURS, "test"], more, 3),
    }


def outcome(counts: Mapping[str, int]) -> str:
    """``ok`` where every case of a test passed, ``in part`` where some are known not to hold.

    Example:
        >>> outcome({"passed": 12}), outcome({"passed": 10, "xfailed": 2}), outcome({"xfailed": 2}), outcome({})
        ('ok', 'in part', 'FAIL', 'not run')
    """
    if not counts:
        return "not run"
    broken = counts.get("xfailed", 0) + counts.get("failed", 0)
    return "ok" if not broken else "in part" if counts.get("passed") else "FAIL"


def run_tests(only: str = "", folder: Path = FOLDER) -> dict[str, dict[str, int]]:
    """Run the contract's tests, or those that match ``only``; how many cases passed, failed, and failed as expected."""
    found: dict[str, Counter[str]] = {}

    class Outcomes:
        @staticmethod
        def pytest_runtest_logreport(report: pytest.TestReport) -> None:
            if report.when == "call" or report.failed:
                name = report.nodeid.split("::")[1].split("[")[0]
                word = "xfailed" if hasattr(report, "wasxfail") else report.outcome
                found.setdefault(name, Counter())[word] += 1

    files = [str(folder / file) for file in FILES.values()]
    pytest.main(["-q", "-p", "no:cacheprovider", "-k", only, *files], plugins=[Outcomes()])
    return {name: dict(counts) for name, counts in found.items()}


def _cell(row: Mapping[str, Any], counts: Mapping[str, int]) -> str:
    """The outcome of the row's test; the test of a row with ``"refuses"`` passes where the check does not hold."""
    found = outcome(counts)
    if row.get("refuses") and found == "ok":
        found = "FAIL"
    return f"{found} {row['note']}" if "note" in row else found


# ---------------------------------------------------------------------- trained weights, in peers that are installed


def _torch_blue(model: nn.Module, keeps: bool) -> None:
    convert: Any = importlib.import_module("torch_blue.vi.utils.convert")
    convert.convert_to_vimodule(model, **({"keep_weights": True} if keeps else {}))


def _bayesian_torch(model: nn.Module, keeps: bool) -> None:
    convert: Any = importlib.import_module("bayesian_torch.models.dnn_to_bnn")
    settings = {"prior_mu": 0.0, "prior_sigma": 1.0, "posterior_mu_init": 0.0, "posterior_rho_init": -4.0}
    kind = {"type": "Reparameterization", "moped_enable": keeps, "moped_delta": 0.2}
    convert.dnn_to_bnn(model, settings | kind)


def _gossamer(model: nn.Module, keeps: bool) -> None:
    import gossamer

    options: dict[str, Any] = {"init": "pretrained"} if keeps else {}
    gossamer.bayesianize(model, density=1.0, **options)


CONVERTERS: dict[str, Callable[[nn.Module, bool], None]] = {
    "torch_blue": _torch_blue,
    "bayesian-torch": _bayesian_torch,
    "gossamer": _gossamer,
}
NETWORKS: tuple[Callable[[], nn.Module], ...] = (
    lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)),
    lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.Flatten(), nn.Linear(24, 3)),
)


def keeps_weights(convert: Callable[[nn.Module, bool], None], with_option: bool) -> bool:
    """Whether every weight of the given networks is still there after the conversion, as the mean of its posterior.

    Example:
        >>> keeps_weights(_gossamer, with_option=False), keeps_weights(_gossamer, with_option=True)
        (False, True)
    """
    torch.manual_seed(0)
    kept = []
    for build in NETWORKS:
        model = build()
        given = [parameter.detach().clone() for parameter in model.parameters() if parameter.dim() > 1]
        convert(model, with_option)
        held: list[Tensor] = [tensor for tensor in model.state_dict().values() if tensor.is_floating_point()]
        kept += [any(_same(tensor, weight) for tensor in held) for weight in given]
    return all(kept)


def _same(tensor: Tensor, weight: Tensor) -> bool:
    return tensor.numel() == weight.numel() and torch.equal(tensor.flatten(), weight.flatten())


def _main() -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.citizen")
    parser.add_argument("file", type=Path, nargs="?", help="results/citizen.json: our outcomes in it are replaced")
    parser.add_argument("--only", default="", help="run the tests that match this alone, as pytest -k does")
    parser.add_argument("--pretrained", action="store_true", help="check the peers that are installed, and print")
    options = parser.parse_args()
    if options.pretrained:
        for name, convert in CONVERTERS.items():
            try:
                found = [keeps_weights(convert, with_option) for with_option in (False, True)]
            except ModuleNotFoundError:
                print(f"{name}: not installed")
            else:
                print(f"{name}: default arguments {found[0]}, with its option {found[1]}")
    if options.file is not None:
        content = json.loads(options.file.read_text(encoding="utf-8"))
        content["tests"] = (content["tests"] if options.only else {}) | run_tests(options.only)
        content["environment"] = {"gossamer": __version__, "torch": torch.__version__}
        write_atomically(options.file, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        sys.exit(any(counts.get("failed") for counts in content["tests"].values()))


if __name__ == "__main__":
    _main()
