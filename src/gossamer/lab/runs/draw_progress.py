"""Progress while networks are drawn and evaluated, which can take longer than an epoch."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from contextvars import ContextVar
from functools import partial

from torch import nn

from gossamer._text.progress import Progress
from gossamer.types import Posterior

SECONDS_OF_SILENCE = 5.0  # without a terminal: nobody waits for a line about less

_shown: ContextVar[Progress | None] = ContextVar("shown", default=None)


@contextlib.contextmanager
def showing_draws(title: str, *, quiet: bool = False) -> Iterator[None]:
    """Within the block, predictions tell which draw they are at: a bar on a terminal, a line now and then elsewhere."""
    with Progress(title, 1, quiet=quiet) as progress:
        token = _shown.set(progress)
        try:
            yield
        finally:
            _shown.reset(token)


def watched(posterior: Posterior) -> Posterior:
    """The posterior, whose draws are shown where :func:`showing_draws` asks for it."""
    progress = _shown.get()
    return posterior if progress is None else _Watched(posterior, progress)


class _Watched(Posterior):
    def __init__(self, posterior: Posterior, progress: Progress) -> None:
        self.posterior, self.progress = posterior, progress
        self.model, self.refresh, self.temperature = posterior.model, posterior.refresh, posterior.temperature

    def draws(self, n: int) -> Iterator[nn.Module]:
        for network, times in self.counted_draws(n):
            yield from [network] * times

    def counted_draws(self, n: int) -> Iterator[tuple[nn.Module, int]]:
        total, number = self.posterior.n_drawn(n), 0
        self.progress.begin(self.progress.title, total)
        told = time.monotonic()
        for network, times in self.posterior.counted_draws(n):
            yield network, times
            number += times
            is_due = self.progress.on_terminal or time.monotonic() - told >= SECONDS_OF_SILENCE
            self.progress.update(number, partial("draw {} of {}".format, number, total) if is_due else None)
            told = time.monotonic() if is_due else told
