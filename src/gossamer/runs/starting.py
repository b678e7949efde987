"""From settings to a training before its first step."""

from __future__ import annotations

import logging
import time

import torch
import torch.distributed as dist
from lightning_fabric import Fabric
from lightning_fabric.utilities.rank_zero import rank_zero_only

from gossamer import methods, models
from gossamer.runs.settings import Settings
from gossamer.train import Training
from gossamer.types import Task

__all__ = ["is_first_process", "launch", "part", "start"]


def launch(settings: Settings) -> Fabric:
    """The processes that train together, started and connected; each goes on from here."""
    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)  # how ranks find each other interests nobody
    fabric = Fabric(
        accelerator=settings.device,
        devices=settings.ranks,
        strategy="ddp" if settings.ranks > 1 else "auto",
        precision="bf16-mixed" if settings.is_bf16() else "32-true",
    )
    if settings.ranks > 1:
        fabric.launch()
    return fabric


def part(fabric: Fabric) -> None:
    """Leave the other processes; threads that still talk to them would not let this one end in peace.

    A thread of torch's that is done with a message takes the interpreter's lock to let go of its tensors, while the end
    of the group holds that lock and waits for the thread. So the lock is given up for a moment first.
    """
    if fabric.world_size > 1 and dist.is_initialized():
        time.sleep(0.2)
        dist.destroy_process_group()


def start(settings: Settings, task: Task, fabric: Fabric) -> Training:
    """The training, before its first step."""
    steps = settings.epochs * -(-task.n_data // settings.batch_size)
    method = methods.build(settings.method, task, steps, **settings.options)
    torch.manual_seed(settings.seed)
    model = models.build(settings.model_name(task), task.input_shape, task.n_outputs)
    captures = settings.capture and settings.is_on_gpu()
    options = {"batch_size": settings.batch_size, "seed": settings.seed}
    return Training(method, model, task, steps, fabric, **options, captures=captures, fused=settings.fused)


def is_first_process() -> bool:
    """Whether this is the process that the user started, and not one that it started to train beside it.

    Example:
        >>> is_first_process()
        True
    """
    rank: int = getattr(rank_zero_only, "rank", 0)
    return rank == 0
