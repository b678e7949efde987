"""What each of two processes does for ``test_loop``: train, save, train on, and again from what was saved."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from gossamer.lab.runs.job import start
from gossamer.lab.runs.progress import launch, part
from gossamer.lab.runs.settings import Settings

SAVED, END = 12, 22  # the subspace moves at 5, 10 and 15
METHODS = {"ssvi": {"density": 0.1, "update_period": 5, "until": 1.0}, "cv_adam": {}, "cv_sghmc": {"mode": "reference"}}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    told = {
        method: Settings(method, "two_moons", epochs=9, batch_size=50, device="cpu", ranks=2, options=options)
        for method, options in METHODS.items()
    }
    fabric = launch(told["ssvi"])
    results = {method: train(settings, folder, fabric) for method, settings in told.items()}
    torch.save(results, folder / f"rank{fabric.global_rank}.pt")
    part()


def train(settings, folder, fabric):
    task = settings.load_task()
    first = start(settings, task, fabric)
    for _ in range(SAVED):
        first.advance()
    saved = folder / f"saved-{settings.method}-{fabric.global_rank}.pt"
    torch.save(first.state_dict(), saved)
    for _ in range(END - SAVED):
        first.advance()
    end = {name: value.clone() for name, value in first.model.state_dict().items()}
    again = start(settings, task, fabric)
    again.load_state_dict(torch.load(saved, weights_only=True))
    for _ in range(END - SAVED):
        again.advance()
    return {"end": end, "again": dict(again.model.state_dict()), "noise": again.state_dict()["random"]["cpu"]}


if __name__ == "__main__":
    main(Path(sys.argv[1]))
