"""How wide a posterior is and how sure its predictions are, fitted on held-out examples.

The width of a posterior depends on its temperature: every variance is proportional to T. Which T predicts best is seen
on examples that trained nothing, and a factor found there needs no second training. A temperature of the logits (Guo et
al. 2017) repairs what no width can: a network that is too sure at its means.
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from gossamer.distributed import OwnNoise
from gossamer.likelihoods import Categorical
from gossamer.posterior.in_layers import InLayers
from gossamer.posterior.predict import Inputs, Prediction, arguments, forward
from gossamer.types import Likelihood, Posterior

DECADES = range(-3, 3)  # of the factor; at the lowest, draws are the network at its means in all but name
PRECISION = 0.05  # of the logarithm of the factor: around its minimum the NLL is flat
LOGIT_DECADES, LOGIT_PRECISION = range(-1, 2), 1e-3  # of the divisor of the logits: from 0.1 to 10
SCALING_PRECISION = 1e-4  # of its logarithm, where it is all that is fitted
LEAST_HELD_OUT = 500  # rows from which on a fit to them is worth more than to train on them, too
COLLAPSED = 0.01  # factor of the variances below which draws are one network to the eye
SLACK = 1e-3  # nats: what nobody would notice
GOLDEN = (math.sqrt(5) - 1) / 2


class Calibration(NamedTuple):
    """What :func:`calibrate` found.

    ``temperature`` is the factor of the variances, ``logit_temperature`` the divisor of the logits, and the other two
    the NLL per target without and with both.

    Example:
        >>> Calibration(temperature=0.3, nll_before=0.5, nll_after=0.4).meaning
        'variances times 0.3: drawn networks disagreed too much for the examples that were held out'
    """

    temperature: float
    nll_before: float
    nll_after: float
    logit_temperature: float = 1.0

    @property
    def is_collapsed(self) -> bool:
        """Whether nothing worth mentioning is left of the spread of the posterior."""
        return self.temperature < COLLAPSED

    @property
    def meaning(self) -> str:
        """The factor of the variances in words."""
        begin = f"variances times {self.temperature:.2g}: "
        if self.is_collapsed:
            return begin + (
                "one network, that at the means, predicts the held-out examples better than draws do. Draws now agree, "
                "so their disagreement (mutual information, epistemic std) tells nothing about unfamiliar inputs. That "
                "is common after a short training and on easy data. If you need it, go back to the posterior as it was "
                "trained, by calibrate(…, widths=[1.0]), or train several networks (members=5)"
            )
        if self.temperature == 1:
            return begin + "drawn networks disagree as much as they should"
        amount = "much" if self.temperature < 1 else "little"
        return begin + f"drawn networks disagreed too {amount} for the examples that were held out"


class _Fit(NamedTuple):
    """What one width predicts for each target, at the best temperature of the logits."""

    nll: Tensor
    logit_temperature: float


@torch.no_grad()
def calibrate(
    model: nn.Module | Posterior,
    x_val: Inputs,
    y_val: Tensor,
    *,
    n_draws: int = 20,
    likelihood: Likelihood | None = None,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
    widths: Sequence[float] | None = None,
    logits: bool = False,
) -> Calibration:
    """Multiply all variances of ``model`` by the factor with the lowest NLL on held-out examples.

    The NLL is that of the mixture of ``n_draws`` networks, with the same ε for every factor. The factor is kept in the
    weights of a network (``weight.calibration``) and saved with it. Draws and evaluations use it, training does not. A
    second call starts from the posterior as it was trained.

    With ``logits`` each width is judged at its best temperature of the logits, which the posterior keeps
    (``posterior.temperature``) and :func:`gossamer.predict` uses. A mixture is calibrated as a whole: members that are
    right alone are too wide together.

    Args:
        model: A converted network with Gaussian weights, after training; or a posterior, such as :func:`gossamer.fit`
            returned.
        x_val: Inputs that were not trained on, as for :func:`gossamer.predict`.
        y_val: Their targets.
        n_draws: How many networks; about as many as will predict, for fewer draws are best when less wide.
        likelihood: ``Categorical()``, which is the default, or ``Gaussian(…)``.
        batch_size: Examples on the network's device at a time.
        generator: Random generator of the draws.
        widths: The factors to choose from, of which 0 is the network at its means and 1 the posterior as it was
            trained. Of those that cannot be told from the best, by one standard error, the widest is taken: it knows
            most about what it does not know. ``None`` searches from 0.001 to 100 and takes the best.
        logits: Whether to fit a temperature of the logits, too; for classes, and for posteriors.

    Returns:
        The factor, the NLL without and with what was found, and the temperature of the logits. The NLLs are those of
        the examples that chose: report the NLL of others. ``meaning`` is the factor in words, which are logged if
        hardly any spread is left.

    Example:
        >>> import gossamer
        >>> _ = torch.manual_seed(0)
        >>> model = gossamer.bayesianize(nn.Linear(10, 3), init_std=2.0)  # far too wide
        >>> x = torch.randn(200, 10)
        >>> y = gossamer.draw(model, at_mean=True)(x).argmax(1)
        >>> found = gossamer.calibrate(model, x, y)
        >>> found.temperature < 0.1, found.nll_after < found.nll_before, model.weight.calibration == found.temperature
        (True, True, True)
    """
    likelihood = Categorical() if likelihood is None else likelihood
    inputs = arguments(x_val)
    if not isinstance(model, nn.Module | Posterior):
        raise TypeError(f"calibrate takes a network with Gaussian weights or a posterior, got {type(model).__name__}")
    posterior = InLayers(model) if isinstance(model, nn.Module) else model
    if logits and (isinstance(model, nn.Module) or likelihood.kind != "classification"):
        raise ValueError(
            "a temperature of the logits is for classes, and kept by a posterior: gossamer.fit returns one"
        )
    has_width = posterior.at_width(1.0) is not posterior
    _check(has_width or logits, len(next(iter([*inputs[0], *inputs[1].values()]))), y_val, n_draws, batch_size)
    seed = int(torch.randint(2**62, (), generator=generator, device=None if generator is None else generator.device))
    fits: dict[float, _Fit] = {}

    def outputs(width: float) -> Iterator[Tensor]:
        return _outputs(posterior, width, seed, 1 if width == 0 else n_draws, inputs, batch_size)

    def fit(width: float) -> _Fit:
        if width not in fits:
            fits[width] = _with_logits(outputs(width), y_val, likelihood) if logits else plain_fit(width)
        return fits[width]

    def plain_fit(width: float) -> _Fit:
        # One draw at a time: memory holds a number per draw and target, not all outputs.
        parts = [_log_density(one.unsqueeze(0), y_val, likelihood) for one in outputs(width)]
        return _Fit(math.log(len(parts)) - torch.stack(parts).logsumexp(0), 1.0)

    def nll(log_factor: float) -> float:
        return float(fit(math.exp(log_factor)).nll.mean())

    plain = plain_fit(1.0)
    if not logits:
        fits[1.0] = plain
    if not has_width:
        width = 1.0
    elif widths is None:
        search(nll, DECADES, PRECISION)
        width = min(fits, key=lambda one: _or_inf(fits[one].nll.mean()))
    else:
        width = _widest(dict(sorted((one, fit(one)) for one in widths)))
    if not math.isfinite(float(fit(width).nll.mean())):
        raise ValueError("the NLL is not finite for any width: check that the network predicts finite numbers")
    posterior.set_width(width)
    found = fit(width)
    if logits:
        posterior.temperature = found.logit_temperature
    result = Calibration(width, float(plain.nll.mean()), float(found.nll.mean()), found.logit_temperature)
    if result.is_collapsed:
        logging.getLogger("gossamer").warning("calibrate: %s", result.meaning)
    return result


def fit_temperature(prediction: Prediction, y_val: Tensor) -> float:
    """The T with the lowest NLL of ``mean over draws of softmax(logits / T)`` on held-out examples.

    It changes how sure the predictions are and, of a single network, never which class is the most probable. It is not
    the temperature of a posterior: the draws stay as they are.

    Args:
        prediction: What the draws that will be used predict for the held-out inputs.
        y_val: Their classes, ``(n,)``.

    Example:
        >>> logits = torch.tensor([[[5.0, 0.0]] * 10])  # 99.3 % sure, and right in 8 of 10
        >>> T = fit_temperature(Prediction(logits), torch.tensor([0] * 8 + [1] * 2))
        >>> round(T, 2), at_temperature(Prediction(logits), T).probs[0, 0].item()  # doctest: +ELLIPSIS
        (3.61, 0.8...)
    """
    if prediction.has_numbers:
        raise ValueError(
            "temperature scaling is for classes: scale intervals of numbers by gossamer.conformal.scaled_intervals"
        )
    n_examples = prediction.outputs.shape[1]
    if not len(y_val) or n_examples != len(y_val):
        raise ValueError(f"there must be as many held-out targets as predictions; got {len(y_val)}, {n_examples}")
    return _best_temperature(prediction.outputs.double(), y_val, Categorical(), SCALING_PRECISION)


def at_temperature(prediction: Prediction, temperature: float) -> Prediction:
    """The prediction with all logits divided by ``temperature``."""
    if not temperature > 0:
        raise ValueError(f"temperature must be positive; got {temperature}")
    return Prediction(prediction.outputs / temperature, prediction.likelihood, prediction.class_dim)


def _outputs(
    posterior: Posterior, width: float, seed: int, n_draws: int, inputs: Any, batch_size: int
) -> Iterator[Tensor]:
    """What each draw at a width says, ``(n, out)``: the same ε for each width."""
    device = next((one.device for one in posterior.model.parameters()), torch.device("cpu"))
    with OwnNoise(seed, device):
        at_width = posterior.at_width(width, torch.Generator(device).manual_seed(seed))
        for network, _ in at_width.passes(n_draws):
            yield from forward(network, inputs, batch_size)


def _with_logits(each: Iterator[Tensor], y: Tensor, likelihood: Likelihood) -> _Fit:
    """The NLL of each target at the best temperature of the logits, for which all outputs are needed."""
    outputs = torch.stack(list(each))
    temperature = _best_temperature(outputs, y, likelihood, LOGIT_PRECISION)
    return _Fit(-_log_density(outputs / temperature, y, likelihood), temperature)


def _best_temperature(outputs: Tensor, y: Tensor, likelihood: Likelihood, precision: float) -> float:
    """The divisor of the logits with the lowest NLL; ``precision`` is that of its logarithm."""

    def nll(log_temperature: float) -> float:
        return -float(_log_density(outputs / math.exp(log_temperature), y, likelihood).mean())

    tried = search(nll, LOGIT_DECADES, precision)
    return math.exp(min(tried, key=lambda log_temperature: tried[log_temperature]))


def _widest(fits: dict[float, _Fit]) -> float:
    """The largest width whose NLL is within one standard error of the best, target by target, or nearly equal."""
    best = min(fits, key=lambda one: _or_inf(fits[one].nll.mean()))
    for width in sorted(fits, reverse=True):
        worse = (fits[width].nll - fits[best].nll).flatten()
        if float(worse.mean()) <= max(SLACK, float(worse.std()) / math.sqrt(len(worse))):  # false for NaN, too
            return width
    return best


def _or_inf(value: Tensor) -> float:
    return math.inf if bool(value.isnan()) else float(value)


def search(function: Callable[[float], float], decades: range, precision: float) -> dict[float, float]:
    """All that was tried for a minimum over a logarithm: the decades, then a golden section around the best of them."""
    tried: dict[float, float] = {}

    def value(at: float) -> float:
        if at not in tried:
            found = function(at)
            tried[at] = math.inf if math.isnan(found) else found
        return tried[at]

    step = math.log(10)
    middle = min((decade * step for decade in decades), key=value)
    low, high = max(decades[0] * step, middle - step), min(decades[-1] * step, middle + step)
    left, right = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
    while high - low > 2 * precision:
        if value(left) <= value(right):
            high, right = right, left
            left = high - GOLDEN * (high - low)
        else:
            low, left = left, right
            right = low + GOLDEN * (high - low)
    return tried


def _log_density(outputs: Tensor, y: Tensor, likelihood: Likelihood) -> Tensor:
    """Logarithm of p(y | all draws) for every target, in float64: ``(draws, n, out), (n, …) -> (n, …)``."""
    if likelihood.kind == "classification":
        if outputs.dim() < 3 or outputs.shape[2] < 2:
            raise ValueError(
                f"outputs of shape {tuple(outputs.shape[1:])} have no classes at dimension 1: for regression pass "
                "likelihood=Gaussian(…)"
            )
        if y.is_floating_point() or not 0 <= int(y.min()) <= int(y.max()) < outputs.shape[2]:
            raise ValueError(
                f"y_val must be class numbers from 0 to {outputs.shape[2] - 1}, as whole numbers; got {y.dtype} from "
                f"{y.min()} to {y.max()}. For regression pass likelihood=Gaussian(…)"
            )
    return likelihood.log_predictive(outputs.double(), y)


def _check(fits_something: bool, n_examples: int, y_val: Tensor, n_draws: int, batch_size: int) -> None:
    if not fits_something:
        raise ValueError(
            "this model has no Gaussian weights, so there is no width to calibrate: convert it with "
            "gossamer.bayesianize(model) and train it first"
        )
    if n_examples != len(y_val):
        raise ValueError(f"x_val and y_val must have as many examples; got {n_examples} and {len(y_val)}")
    if not n_examples:
        raise ValueError("there are no held-out examples: load the task with n_val above 0, or split off a part")
    if n_draws < 1 or batch_size < 1:
        raise ValueError(f"n_draws and batch_size count from 1; got {n_draws} and {batch_size}")
