"""DPF: the gradient is that of the pruned network, and it moves the dense weights."""

import torch
from torch import nn

import gossamer
from gossamer import methods
from gossamer.data import digits, two_moons
from gossamer.models import mlp
from gossamer.train import Training

LR, DECAY, MOMENTUM = 0.03, 0.01, 0.9


def test_the_dense_weights_receive_the_gradient_at_the_pruned_point():
    """Ten steps of L(w) = |m ⊙ w - a|²/2, by hand: g = m ⊙ w - a moves every weight, also where m is 0."""
    target = torch.tensor([[3.0, -2.0, 2.5, 0.1, -0.2]], dtype=torch.float64)
    dense = torch.tensor([[1.0, -3.0, 0.1, 0.2, -1.1]], dtype=torch.float64)
    layer = nn.Sequential(nn.Linear(5, 1, bias=False, dtype=torch.float64))
    layer[0].weight.data = dense.clone()
    options = {"lr": LR, "weight_decay": DECAY, "momentum": MOMENTUM, "update_period": 2, "until": 0.5}
    method = methods.build("dpf", two_moons.load(), 20, density=0.4, **options)
    model = method.prepare(layer)
    optimizer = method.optimizer(model)
    (prune,) = method.rules(model, optimizer)

    mask, buffer = torch.ones_like(dense), torch.zeros_like(dense)
    returned, eye = False, torch.eye(5, dtype=torch.float64)
    for step in range(1, 11):
        torch.testing.assert_close(model[0].weight.dense_mean(), mask * dense)
        optimizer.zero_grad()
        ((model(eye).T - target).square().sum() / 2).backward()
        prune.step()
        optimizer.step()
        if step % 2 == 0:  # the mask of the steps to come, of the weights before this one
            n_kept = round((0.4 + 0.6 * max(0.0, 1 - step / 10) ** 3) * 5)
            chosen = torch.zeros_like(mask)
            chosen[0, dense[0].abs().argsort(descending=True)[:n_kept]] = 1.0
            returned = returned or bool((chosen > mask).any())
        gradient = mask * dense - target + DECAY * dense
        buffer = MOMENTUM * buffer + gradient
        dense = dense - LR * (gradient + MOMENTUM * buffer)  # Nesterov
        mask = chosen if step % 2 == 0 else mask
    assert returned  # some weight was cut and came back


def test_the_end_is_stored_sparse():
    task, steps = digits.load(), 40
    training = Training(methods.build("dpf", task, steps, density=0.1, update_period=4), mlp(64, (32,)), task, steps)
    total = 64 * 32 + 32 * 10
    for _ in training.run():
        stored = gossamer.active_parameters(training.model)
        assert stored == (total if training.step < 30 else round(0.1 * total))
