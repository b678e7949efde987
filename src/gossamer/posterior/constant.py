"""Whether a training has learnt anything: its posterior compared with the best output that no input changes."""

import math

import torch
from torch import Tensor

from gossamer.distributed import OwnNoise
from gossamer.posterior.predict import predict
from gossamer.types import Likelihood, Posterior, Task

MOST_ROWS, N_DRAWS = 1000, 5  # that tell
NO_BETTER = (
    "the predictions for the training examples are no better than {constant}: the training has learnt nothing. Give "
    "another learning rate (lr) or train longer, unless the inputs say nothing about the targets"
)
CONSTANTS = {"classification": "the frequencies of the classes", "regression": "the mean of the targets"}


def learnt_nothing(posterior: Posterior, task: Task) -> str | None:
    """What to tell of a posterior that does not beat a constant on up to 1,000 training examples; otherwise nothing.

    A few draws predict, from noise of their own.
    """
    x, y = task.train
    rows = torch.linspace(0, len(y) - 1, min(len(y), MOST_ROWS)).long()
    x, some = x[rows.to(x.device)], y[rows.to(y.device)].cpu()
    with OwnNoise(0, next(posterior.model.parameters()).device):
        outputs = predict(posterior, task.transform(x), N_DRAWS).outputs.cpu()
    if beats_constant(outputs, some, task.likelihood, y.cpu()):
        return None
    return NO_BETTER.format(constant=CONSTANTS[task.likelihood.kind])


def beats_constant(outputs: Tensor, y: Tensor, likelihood: Likelihood, every: Tensor) -> bool:
    """Whether the log density of targets ``y`` is above that of the best constant for ``every`` one, by two errors.

    These are standard errors of the mean over the examples. Without a known constant, or where all targets are
    equal, the answer is yes.

    Example:
        >>> from gossamer import Categorical
        >>> y = torch.tensor([0, 1] * 50)
        >>> known = 4.0 * torch.nn.functional.one_hot(y)[None]
        >>> [beats_constant(outputs, y, Categorical(), y) for outputs in (known, 0 * known)]
        [True, False]
    """
    constant = likelihood.constant(every)
    if constant is None or bool((y == y[:1]).all()):
        return True
    alike = constant.expand(1, len(y), constant.shape[1], *outputs.shape[3:])  # no input changes it
    gain = likelihood.log_predictive(outputs, y) - likelihood.log_predictive(alike.to(outputs), y)
    gain = gain.double().flatten()
    return bool(gain.mean() > 2 * gain.std() / math.sqrt(len(gain)))
