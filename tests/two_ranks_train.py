"""What each of two processes does in ``test_train``: train, save, train on, and train on again from what was saved."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from gossamer.experiments.settings import Settings
from gossamer.experiments.starting import launch, part, start

SAVED, END = 12, 22  # the subspace moves at 5, 10 and 15


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    options = {"density": 0.1, "update_period": 5, "until": 1.0}
    settings = Settings("ssvi", "two_moons", epochs=9, batch_size=50, device="cpu", ranks=2, options=options)
    task = settings.load_task()
    fabric = launch(settings)
    first = start(settings, task, fabric)
    for _ in range(SAVED):
        first.advance()
    torch.save(first.state_dict(), folder / f"saved{fabric.global_rank}.pt")
    for _ in range(END - SAVED):
        first.advance()
    end = {name: value.clone() for name, value in first.model.state_dict().items()}
    again = start(settings, task, fabric)
    again.load_state_dict(torch.load(folder / f"saved{fabric.global_rank}.pt", weights_only=True))
    for _ in range(END - SAVED):
        again.advance()
    result = {"end": end, "again": dict(again.model.state_dict()), "noise": again.state_dict()["random"]["cpu"]}
    torch.save(result, folder / f"rank{fabric.global_rank}.pt")
    part(fabric)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
