"""What an evaluation had computed when it was killed, in a file of the run: the next one goes on from there."""

import contextlib
import time
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from gossamer.files.atomic import RecordError, read_bytes, write_atomically
from gossamer.files.container import from_bytes, to_bytes
from gossamer.posterior.predict import Around

SECONDS, SHARE = 1.0, 20  # nothing is written again for a second, and for so many times as long as a write takes


class Unfinished:
    """The parts of an evaluation that are computed, by name; ``of`` is the state of the run that they belong to.

    At the end of its block there is no file, unless that is an interrupt.
    """

    def __init__(self, file: Path, of: str) -> None:
        self.file, self.of, self.parts, self.next = file, of, dict[str, Any](), time.monotonic() + SECONDS
        with contextlib.suppress(ValueError, RecordError, KeyError, TypeError):
            content = from_bytes(read_bytes(file) or b"")
            self.parts = content["parts"] if content["of"] == of else {}

    def once(self, name: str, compute: Callable[[], Any]) -> Any:
        """What ``compute`` returns, or had returned; the parts of which this one was computed are forgotten."""
        if name not in self.parts:
            before = dict(self.parts)
            self.parts = {**before, name: compute()}
            start = time.monotonic()
            if start > self.next:
                with contextlib.suppress(RecordError):  # who may only read a run evaluates it in one go
                    write_atomically(self.file, to_bytes({"of": self.of, "parts": self.parts}))
                self.next = time.monotonic() + max(SECONDS, SHARE * (time.monotonic() - start))
        return self.parts[name]

    def around(self, x: Tensor, shown: Around | None) -> Around:
        """What computes outputs for ``x`` once. Noise goes on after each as if it had been computed now."""
        inputs = zlib.crc32(x.cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        places: list[Any] = [torch, torch.cuda] if torch.cuda.is_available() else [torch]

        def part(done: float, compute: Callable[[], Tensor]) -> dict[str, Any]:
            outputs = compute() if shown is None else shown(done, compute)
            return {"outputs": outputs, "noise": [place.get_rng_state() for place in places]}

        def around(done: float, compute: Callable[[], Tensor]) -> Tensor:
            outputs, noise = self.once(f"{inputs} {done}", partial(part, done, compute)).values()
            for place, state in zip(places, noise, strict=True):
                place.set_rng_state(state)
            return cast(Tensor, outputs)

        return around

    def __enter__(self) -> None:
        """Nothing is written yet."""

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        if kind is not KeyboardInterrupt:
            self.file.unlink(missing_ok=True)
