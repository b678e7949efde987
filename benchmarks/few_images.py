"""What a second training is worth to few images of one's own.

``python -m benchmarks.few_images FOLDER SET…`` reads ``FOLDER/SET.npz``, which has ``x_test`` and ``y_test``, images as
(n, height, width[, channels]). Of these 2,500 are trained on by the defaults of the command, and 2,000 others tested.
Every call replaces the rows of its sets in ``results``.
"""

from __future__ import annotations

import json
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.environment import surroundings
from benchmarks.pages import STUDY
from benchmarks.timing import THREAD
from gossamer.files.atomic import json_by_rows, write_atomically
from gossamer.lab import Settings, train

OUT, N_TRAIN, N_TEST = Path("results/few-images.json"), 2500, 2000
HEAD = ["images", "calibrated", "accuracy, %", "NLL", "ECE, %", "ECE of perfect calibration, %", "training, s"]
WAYS = {"no": {"calibrate": False, "n_val": 0}, "by a second training": {}}


def main() -> None:
    """Measure the sets that were asked for."""
    torch.set_num_threads(1)
    folder, *names = sys.argv[1:]
    rows = json.loads(OUT.read_text("utf-8"))["tables"]["few-images"]["rows"] if OUT.exists() else []
    for name in names:
        rows = [row for row in rows if row[0] != name] + measured(Path(folder) / f"{name}.npz")
    table = {"head": HEAD, "rows": rows, "n_labels": 2}
    environment = {**surroundings(THREAD), "date": str(date.today())}
    content = {"format": 1, "kind": STUDY, "environment": environment, "tables": {"few-images": table}}
    write_atomically(OUT, json_by_rows(content))


def measured(file: Path) -> list[list[str]]:
    """A row for each way to end the training."""
    with np.load(file) as stored:
        arrays = {kind: stored[f"{kind}_test"] for kind in "xy"}
    order = np.random.default_rng(7).permutation(len(arrays["y"]))
    parts = {"train": order[:N_TRAIN], "test": order[N_TRAIN : N_TRAIN + N_TEST]}
    rows = []
    with tempfile.TemporaryDirectory() as home:
        own = {f"{kind}_{part}": values[chosen] for part, chosen in parts.items() for kind, values in arrays.items()}
        np.savez(Path(home) / "own.npz", **own)
        for way, settings in WAYS.items():
            given: dict[str, Any] = {"data": str(Path(home) / "own.npz"), "device": "cpu", **settings}
            result = train(Settings("ssvi", **given), Path(home) / way.replace(" ", "-"), quiet=True).result() or {}
            metrics = result["metrics"]
            seconds = result["cost"]["seconds"] + result.get("second_training", {}).get("seconds", 0.0)
            shares = (f"{100 * metrics[key]:.1f}" for key in ("accuracy", "ece", "ece_floor"))
            accuracy, *calibration = shares
            rows.append([file.stem, way, accuracy, f"{metrics['nll']:.2f}", *calibration, f"{seconds:.0f}"])
            print(*rows[-1], flush=True)
    return rows


if __name__ == "__main__":
    main()
