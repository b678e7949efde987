"""Default rates of every method suit numbers, too, and what is recorded of a rate is what was used."""

import ast
import inspect
import math
import textwrap
from importlib.util import find_spec

import pytest
import torch

from gossamer import fit, methods
from gossamer.data import digits, sun1
from gossamer.evaluate import predict_inputs
from gossamer.likelihoods import Gaussian
from gossamer.models import build, mlp
from gossamer.train import Training
from gossamer.types import Task

NOISE = 0.25
ABLE = [name for name in methods.names() if name != "laplace" or find_spec("laplace")]
# laplace wants a known noise.
CASES = [
    (name, problem)
    for name in ABLE
    for problem in ("known", "learnt", "sun1")
    if (name, problem) != ("laplace", "learnt")
]
OFTEN = {("rigl", "known"), ("em_mcmc", "learnt"), ("csgld", "known"), ("sm", "known")}


def table(noise: str) -> Task:
    """600 training rows, a standardised target, and noise of a quarter of it: known, or to be learnt."""
    draw = torch.Generator().manual_seed(7)
    x = torch.randn(1400, 8, generator=draw)
    f = torch.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2] + 0.5 * x[:, 3].square() + x[:, 4]
    y = (f - f.mean()) / f.std() * math.sqrt(1 - NOISE**2) + NOISE * torch.randn(1400, generator=draw)
    y = ((y - y[:600].mean()) / y[:600].std()).unsqueeze(1)
    train, test = (x[:600], y[:600]), (x[600:], y[600:])
    likelihood = Gaussian(NOISE) if noise == "known" else Gaussian()
    return Task(train, (x[:0], y[:0]), test, likelihood, 1 if noise == "known" else 2, name=f"{noise} noise")


@pytest.mark.parametrize(
    ("name", "problem"), [pytest.param(*case, marks=() if case in OFTEN else pytest.mark.slow) for case in CASES]
)
def test_defaults_train_numbers(name, problem):
    """Without diverging, and with clearly smaller errors than those of the mean."""
    task = sun1.load() if problem == "sun1" else table(problem)
    steps = (3 if problem == "sun1" else 60) * -(-task.n_data // 64)
    torch.manual_seed(0)
    network = build("mlp", task.input_shape, 1) if problem == "sun1" else mlp(8, (50, 50), task.n_outputs)
    posterior = fit(methods.build(name, task, steps), network, task, steps)
    (x, y), mean = task.test, task.train[1].mean()
    errors = (predict_inputs(posterior, task, x, 10).mean - y).square()
    gain = ((mean - y).square() - errors).double().flatten()
    assert gain.mean() > 4 * gain.std() / math.sqrt(len(gain))  # standard errors over the test rows


@pytest.mark.parametrize("name", ABLE)
def test_a_method_tells_the_truth_about_its_steps(name):
    """The first step for a loss that is k times as steep is k times as long, or of a size of its own."""
    x, y = table("known").train
    moves = {}
    for steepness in (1, 4):  # noise of 1 and of a half; the first residuals count with 1/σ²
        task = table("known")._replace(likelihood=Gaussian(1 / math.sqrt(steepness)), train=(x, y))
        torch.manual_seed(0)
        options = {"lr": 1e-3, "sampler": "sgld", "temperature": 1e-9}  # next to no noise
        own = {option: value for option, value in options.items() if option in methods.options_of(name)}
        method = methods.build(name, task, 400, **own)
        training = Training(method, mlp(8, (20,), 1), task, 400)
        before = [parameter.detach().clone() for parameter in training.model.parameters()]
        training.advance()
        moves[steepness] = [p.detach() - b for p, b in zip(training.model.parameters(), before, strict=True)]
    added = [four - one for one, four in zip(moves[1], moves[4], strict=True)]  # without what noise and priors add
    growth = float(torch.nn.utils.get_total_norm(added) / torch.nn.utils.get_total_norm(moves[1]))
    assert (growth > 1) == training.method.one_rate  # 3 where a step follows the gradient alone, 0 for Adam


@pytest.mark.parametrize("name", ABLE)
def test_a_given_rate_stays(name):
    if "lr" not in methods.options_of(name):
        pytest.skip("ensemble hands options on to its members")
    task = table("known")
    rates = {option: 0.02 for option in ("lr", "swag_lr") if option in methods.options_of(name)}
    given = methods.build(name, task, 400, **rates).suited_to(mlp(8, (20,), 1))
    assert given.lr_is_given or not given.one_rate
    assert max(map(given.lr, range(400))) == pytest.approx(0.02, rel=0.01)  # a warm-up may not get there to the end
    usual = methods.build(name, task, 400).suited_to(mlp(8, (20,), 1))
    assert not usual.lr_is_given


@pytest.mark.parametrize("option", ["lr", "update_period", "every"])
def test_zero_is_refused(option):
    task = digits.load()
    of = [name for name in ABLE if option in methods.options_of(name)]
    assert of
    for name in of:
        with pytest.raises(ValueError, match=rf"{option}.*; got 0"):
            Training(methods.build(name, task, 400, **{option: 0}), mlp(64), task, 400)


@pytest.mark.parametrize("name", methods.names())
def test_no_given_option_is_taken_for_one_that_was_left_out(name):
    """``option or default`` would take a zero for nothing, while the run records the zero."""
    function = methods.find(name)
    numbers = {
        option for option, (kind, _) in methods.options_of(name).items() if "int" in str(kind) or "float" in str(kind)
    }
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    ors = [node for node in ast.walk(tree) if isinstance(node, ast.BoolOp) and isinstance(node.op, ast.Or)]
    first = {node.values[0].id for node in ors if isinstance(node.values[0], ast.Name)}
    assert not first & numbers
