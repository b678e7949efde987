"""Which of a thousand variables matter? The estimators on the simulated data sets of Sun, Song and Liang (2021).

    python examples/variable_selection.py [--rows 2000] [--seeds 3] [--methods ssvi …]

For each data set, prints how many relevant and how many irrelevant variables were selected, and the score on fresh
rows: R² for sun1 and sun2, accuracy for sun3. The estimators use their defaults.
"""

import argparse
import importlib
import statistics

import numpy as np

import gossamer
from gossamer import data, methods

SETS = {
    "sun1": gossamer.SparseBayesRegressor,
    "sun2": gossamer.SparseBayesRegressor,
    "sun3": gossamer.SparseBayesClassifier,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["ssvi"], choices=methods.names(), metavar="METHOD")
    options = parser.parse_args()
    print("| set | method | relevant, selected | others, selected | score on fresh rows |")
    print("| --- | --- | --- | --- | --- |")
    for name in SETS:
        for method in options.methods:
            runs = [run(name, method, options.rows, seed) for seed in range(options.seeds)]
            hits, false, score = (statistics.mean(values) for values in zip(*runs, strict=True))
            relevant, columns = relevant_of(name)
            print(
                f"| {name} | {method} | {hits:.1f} of {len(relevant)} | {false:.1f} of {columns - len(relevant)} "
                f"| {score:.3f} |",
                flush=True,
            )


def run(name: str, method: str, rows: int, seed: int) -> tuple[int, int, float]:
    """Relevant variables selected, others selected, score on the test rows."""
    task = data.load(name, n_train=rows, seed=seed)
    (x, y), (x_new, y_new) = ((part[0].numpy(), part[1].numpy().ravel()) for part in (task.train, task.test))
    model = SETS[name](method, random_state=seed).fit(x, y)
    selected = model.get_support()
    is_relevant = np.isin(np.arange(len(selected)), relevant_of(name)[0])
    return int(selected[is_relevant].sum()), int(selected[~is_relevant].sum()), float(model.score(x_new, y_new))


def relevant_of(name: str) -> tuple[tuple[int, ...], int]:
    module = importlib.import_module(f"gossamer.data.{name}")
    return module.RELEVANT, module.N_VARIABLES


if __name__ == "__main__":
    main()
