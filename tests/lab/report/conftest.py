import importlib.util
from pathlib import Path

import pytest

from gossamer.lab.report import write_comparison, write_report
from gossamer_sweep import write_sweep


@pytest.fixture(scope="session")
def fake():
    """The module that makes run folders."""
    spec = importlib.util.spec_from_file_location("fake_runs", Path(__file__).with_name("fake.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def pages(fake, tmp_path_factory):
    """One report of each kind, by name."""
    root = tmp_path_factory.mktemp("reports")
    folders = {
        "single": [fake.fake_run(root / "single")],
        "coloured": [fake.fake_run(root / "coloured", coloured=True, steps=7800)],
        "unfinished": [fake.fake_run(root / "un finished", finished=False, steps=7800)],
        "regression": [fake.fake_regression(root / "regression")],
        "rows": [fake.fake_rows(root / "rows")],
        "evaluated": [fake.fake_evaluated(root / "evaluated")],
        "outside": [fake.fake_ood(root / "outside")],
        "several": fake.fake_comparison(root / "several"),
    }
    write = {"several": write_comparison}
    pages = {name: write.get(name, write_report)(some, root / f"{name}.html") for name, some in folders.items()}
    return pages | {"sweep": write_sweep(fake.fake_sweep(root / "sweep"), root / "sweep.html")}
