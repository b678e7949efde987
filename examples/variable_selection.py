"""Which of a thousand variables matter? The estimators on example 1 of Sun, Song and Liang (2021).

    python examples/variable_selection.py [--rows 2000] [--seeds 3] [--methods ssvi …]

For each method, prints how many relevant and how many irrelevant variables were selected, and R² on fresh rows. The
estimator uses its defaults.
"""

import argparse
import statistics

import numpy as np

import gossamer
from gossamer import methods
from gossamer.data import sun1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="+", default=["ssvi"], choices=methods.names(), metavar="METHOD")
    options = parser.parse_args()
    print("| method | relevant, selected | others, selected | R² on fresh rows |")
    print("| --- | --- | --- | --- |")
    for method in options.methods:
        runs = [run(method, options.rows, seed) for seed in range(options.seeds)]
        hits, false, score = (statistics.mean(values) for values in zip(*runs, strict=True))
        n_relevant = len(sun1.RELEVANT)
        others = f"{false:.1f} of {sun1.N_VARIABLES - n_relevant}"
        print(f"| {method} | {hits:.1f} of {n_relevant} | {others} | {score:.3f} |", flush=True)


def run(method: str, rows: int, seed: int) -> tuple[int, int, float]:
    """Relevant variables selected, others selected, R² on the test rows."""
    task = sun1.load(n_train=rows, seed=seed)
    (x, y), (x_new, y_new) = ((part[0].numpy(), part[1].numpy().ravel()) for part in (task.train, task.test))
    model = gossamer.SparseBayesRegressor(method, random_state=seed).fit(x, y)
    selected = model.get_support()
    is_relevant = np.isin(np.arange(len(selected)), sun1.RELEVANT)
    return int(selected[is_relevant].sum()), int(selected[~is_relevant].sum()), float(model.score(x_new, y_new))


if __name__ == "__main__":
    main()
