"""Tables of kept runs: means and spreads by hand; what is missing shows; what does not belong together is refused."""

import json
import statistics
from pathlib import Path

import pytest

from benchmarks.kept import determined, read_recipes, recipe_tables, setup_seconds, trials_table
from benchmarks.trials import Trial, Trials
from gossamer.lab import read_recipe
from gossamer.lab.record import RecordError, to_toml

ROOT = Path(__file__).parents[2]
ACCURACIES = {0: 0.930, 1: 0.936, 2: 0.942}


def keep(folder: Path, name: str, seed: int, accuracy: float, data: str = "cifar10", density: float = 0.05, **told):
    """A run as it is kept in ``results/``: five epochs of 2 s, and 20 s of set-up in the first."""
    run = folder / name / str(seed)
    run.mkdir(parents=True)
    config = {"format": 1, "method": "ssvi", "data": data, "epochs": 5, "seed": seed} | told
    (run / "config.toml").write_text(to_toml(config))
    (run / "environment.json").write_text(json.dumps({"time": f"2026-01-0{seed + 1}T12:00:00", "gpu": "a GPU"}))
    lines = [{"step": 10 * epoch, "seconds": 20.0 + 2 * epoch} for epoch in range(1, 6)]
    (run / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    metrics = {"accuracy": accuracy, "nll": 0.2, "ece": 0.03, "marginal_l2_debiased": 0.007, "brier": 0.1}
    cost = {"active_parameters": 1000, "total_parameters": 20000, "density": density, "checkpoint_bytes": 13e6,
            "seconds": 30.0, "peak_memory_bytes": 1.5e9}  # fmt: skip
    ways = {"draws": metrics, "mean": metrics | {"accuracy": accuracy - 0.01}, "local": metrics}
    result = {"format": 1, "data": data, "n_draws": 5, "metrics": metrics, "predictions": ways, "cost": cost}
    (run / "result.json").write_text(json.dumps(result))


@pytest.fixture
def folder(tmp_path):
    for seed, accuracy in ACCURACIES.items():
        keep(tmp_path, "ssvi-cifar10-95", seed, accuracy)
    keep(tmp_path, "vi-cifar10", 0, 0.95, density=1.0)
    keep(tmp_path, "ssvi-cifar100-90", 0, 0.75, data="cifar100")
    return tmp_path


@pytest.fixture
def tables(folder):
    return recipe_tables(read_recipes(folder))


def test_mean_and_standard_deviation(tables):
    values = [100 * value for value in ACCURACIES.values()]
    cell = f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"
    assert cell == "93.60 ± 0.60"
    rows = tables["recipes"].rows
    ours = next(row for row in rows if row[0] == "`ssvi-cifar10-95`")
    assert ours[:4] == ["`ssvi-cifar10-95`", "3", cell, "0.200 ± 0.000"]


def test_one_seed_has_no_spread_and_says_that_it_is_one(tables):
    assert ["`vi-cifar10`", "1", "95.00", "0.200", "0.0300", "0.0070", "0.1000"] in tables["recipes"].rows


def test_rows_go_by_data_set_and_density(tables):
    names = [row[0] for row in tables["recipes-cost"].rows]
    assert names == ["`vi-cifar10`", "`ssvi-cifar10-95`", "`ssvi-cifar100-90`"]


def test_every_way_to_predict_has_a_row(tables):
    rows = [row[1:4] for row in tables["recipes-predictions"].rows if row[0] == "`ssvi-cifar10-95`"]
    assert rows == [
        ["5 weight draws", "3", "93.60 ± 0.60"],
        ["mean weights", "3", "92.60 ± 0.60"],
        ["5 local passes", "3", "93.60 ± 0.60"],
    ]


def test_set_up_is_what_the_first_epoch_took_beyond_the_others(tables):
    row = dict(zip(tables["recipes-cost"].head, tables["recipes-cost"].rows[1], strict=True))
    assert (row["training, s"], row["set-up, s"], row["s an epoch"]) == ("10 ± 0", "20 ± 0", "2.00")
    assert (row["share"], row["checkpoint, MB"]) == ("5.0 %", "13.0")


def test_a_run_that_shared_its_gpu_has_no_part_in_times(folder):
    for seed in (0, 1):
        path = folder / "ssvi-cifar10-95" / str(seed) / "environment.json"
        path.write_text(json.dumps({"time": "2026-01-01T12:00:00", "gpu": "a GPU", "gpu_shared": True}))
        result = path.parent / "result.json"
        result.write_text(result.read_text().replace('"seconds": 30.0', '"seconds": 90.0'))
    table = recipe_tables(read_recipes(folder))["recipes-cost"]
    row = dict(zip(table.head, table.rows[1], strict=True))
    assert (row["seeds"], row["training, s"], row["set-up, s"], row["s an epoch"]) == ("3", "10", "20", "2.00")
    path = folder / "vi-cifar10" / "0" / "environment.json"
    path.write_text(json.dumps({"time": "2026-01-01T12:00:00", "gpu": "a GPU", "gpu_shared": True}))
    table = recipe_tables(read_recipes(folder))["recipes-cost"]
    row = dict(zip(table.head, table.rows[0], strict=True))
    assert (row["training, s"], row["set-up, s"], row["s an epoch"]) == ("–", "–", "–")


def test_how_fast_and_where_may_differ_between_seeds(folder):
    keep(folder, "vi-cifar10", 1, 0.9, capture=False, device="cuda")
    assert len(read_recipes(folder)[0].runs) == 2


@pytest.mark.parametrize(
    ("seconds", "setup"),
    [([2.0, 4.0, 6.0], 0.0), ([22.0, 24.0, 26.0, 28.0, 30.5], 20.0), ([22.0, 24.0, 26.0, 28.0, 40.0, 42.0], 30.0)],
    ids=["none", "one process", "two processes"],
)
def test_set_up_of_each_process_counts(seconds, setup):
    assert setup_seconds(seconds) == pytest.approx(setup)


def test_an_unfinished_run_and_another_folder_have_no_row(folder):
    (folder / "vi-cifar100" / "0").mkdir(parents=True)
    (folder / "vi-cifar100" / "0" / "config.toml").write_text("format = 1\nseed = 0\n")
    keep(folder, "runs", 0, 0.9)
    (folder / "runs" / "0").rename(folder / "runs" / "first")
    assert [recipe.name for recipe in read_recipes(folder)] == ["vi-cifar10", "ssvi-cifar10-95", "ssvi-cifar100-90"]


def test_seeds_of_different_settings_are_refused(folder):
    keep(folder, "vi-cifar10", 1, 0.9, epochs=100)
    with pytest.raises(RecordError, match=r"vi-cifar10/1 has other settings than .*vi-cifar10/0"):
        read_recipes(folder)


def test_an_option_that_was_left_out_is_its_default(folder):
    keep(folder, "ssvi-cifar100-90", 1, 0.75, data="cifar100", options={"density": 0.05})
    keep(folder, "ssvi-cifar100-90", 2, 0.75, data="cifar100", options={"density": 0.1})
    with pytest.raises(RecordError, match=r"ssvi-cifar100-90/2 has other settings than .*ssvi-cifar100-90/0"):
        read_recipes(folder)


def test_a_folder_is_named_after_its_seed(folder):
    (folder / "vi-cifar10" / "0").rename(folder / "vi-cifar10" / "7")
    with pytest.raises(RecordError, match="vi-cifar10/7 holds seed 0: name the folder after its seed"):
        read_recipes(folder)


def test_without_runs_there_are_no_tables(tmp_path):
    assert recipe_tables(read_recipes(tmp_path)) == {}


KEPT = [(recipe.name, run) for recipe in read_recipes(ROOT / "results") for run in recipe.runs]


@pytest.mark.parametrize(("name", "run"), KEPT, ids=[f"{name}-{run.config['seed']}" for name, run in KEPT])
def test_a_kept_run_wdetermined_what_its_recipe_says(name, run):
    """So that no row stands under the name of a recipe that it is not."""
    entries, _ = read_recipe(ROOT / "recipes" / f"{name}.toml")
    (settings,) = entries.values()
    told, kept = determined(settings.to_config()), determined(run.config)
    # What is None now, a method chooses: it was an option with that value when the run was made.
    now_chosen = {name: None for name, value in told["options"].items() if value is None}
    assert kept | {"options": kept["options"] | now_chosen} == told
    assert len(run.metrics()) == settings.epochs


def test_kept_environments_name_no_folder_and_no_command():
    assert not [run.folder for _, run in KEPT if {"argv", "git_commit"} & set(run.environment)]


# ---------------------------------------------------------------------- comparisons


def trial(label: str, seed: int, **metrics: float) -> Trial:
    return Trial(label, seed, {}, metrics, {"active_parameters": 4224})


def test_mean_and_standard_error():
    rows = trials_table(
        Trials([trial("a", seed, accuracy=x, nll=0.1) for seed, x in enumerate((0.9, 0.93, 0.96))], {})
    ).rows
    assert rows == [["a", "3", "4,224", "93.0 ± 1.7 %", "0.1", "–", "–"]]  # 3 / √3


@pytest.mark.parametrize(("information", "cell"), [(0.0, "0"), (0.0123, "0.0123")])
def test_one_network_cannot_disagree_with_itself(information, cell):
    assert trials_table(Trials([trial("a", 0, mutual_information=information)], {})).rows[0][-1] == cell


def test_a_method_that_failed_is_not_hidden():
    table = trials_table(Trials([trial("a", 0, accuracy=0.9)], {}, {"b": "out of memory"}))
    assert table.rows[1] == ["b", "0", "–", "–", "–", "–", "–"]
