"""Counting: what summary, density and active_parameters say, and what the optimizer really holds."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer import kernels
from gossamer.layers import sparse_weights
from gossamer.models import resnet18


def small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 10), nn.LSTM(10, 4)
    )


def test_the_rows_of_a_summary():
    model = gossamer.bayesianize(small_network(), 0.1)
    table = gossamer.summary(model)
    found = {(row.layer, row.kind): (row.shape, row.active, row.total, row.n_bytes) for row in table.rows}
    assert found == {
        ("0", "Conv2d"): ((8, 3, 3, 3), 216, 216, 216 * 12 + 16),  # mean, curvature, squares; their noise
        ("1", "BatchNorm2d"): ((16,), 16, 16, 64),
        ("3", "Linear"): ((10, 8), 8, 80, 8 * 16 + 16),  # and where it is
        ("3", "bias"): ((10,), 10, 10, 40),
        ("4.weight_ih_l0", "LSTM"): ((16, 10), 16, 160, 16 * 16 + 16),
        ("4.weight_hh_l0", "LSTM"): ((16, 4), 6, 64, 6 * 16 + 16),
        ("4", "bias"): ((32,), 32, 32, 128),
    }
    assert [row.layer.split(".")[0] for row in table.rows] == sorted(row.layer.split(".")[0] for row in table.rows)
    products = {row.layer: row.product for row in table.rows if row.product}
    own = "sparse" if kernels.library.LIBRARY else "dense"  # an LSTM forms its whole weights
    assert products == {"0": own, "3": own, "4.weight_ih_l0": "dense", "4.weight_hh_l0": "dense"}
    notes = {row.layer: row.note for row in table.rows if row.note}
    assert notes == {
        "1": "no rule for BatchNorm2d: stays deterministic",
        "3": "a bias is not sparse",
        "4": "a bias is not sparse",
    }
    stored = [
        *model.parameters(),
        *(
            b
            for name, b in model.named_buffers()
            if name.endswith(("curvature", "grad_square", "shrinkage", "position"))
        ),
    ]
    assert sum(row.n_bytes for row in table.rows) == sum(t.numel() * t.element_size() for t in stored)


def test_a_summary_is_a_table_that_prints_nothing_itself(capsys):
    """Printed, and as the value of a cell in a notebook, it is the same table, once."""
    table = gossamer.summary(gossamer.bayesianize(small_network(), 0.1))
    assert capsys.readouterr().out == ""
    assert repr(table) == str(table)
    lines = str(table).splitlines()
    assert " ".join(lines[0].split()) == "layer kind shape active / total density bytes product left alone because"
    assert lines[-1].split() == ["total", "246", "/", "520", "47.3%", f"{sum(row.n_bytes for row in table.rows):,}"]


def test_density_and_active_parameters():
    model = gossamer.bayesianize(small_network(), 0.1)
    counts = {name: (w.support.n_active, w.support.size) for name, w in sparse_weights(model).items()}
    assert gossamer.active_parameters(model) == 246 == sum(active for active, _ in counts.values())
    assert gossamer.density(model) == 246 / 520
    padded = gossamer.bayesianize(nn.Embedding(11, 10, padding_idx=0), 0.3)
    assert (gossamer.active_parameters(padded), gossamer.density(padded)) == (30, 0.3)
    plain = nn.Linear(2, 2)
    assert gossamer.active_parameters(plain) == 0
    assert gossamer.density(plain) == 1.0
    assert math.isnan(gossamer.density(nn.ReLU()))


def test_a_layer_added_later_is_told_apart():
    model = gossamer.bayesianize(nn.Sequential(nn.Linear(4, 4)), 0.5)
    model.append(nn.Linear(4, 2))
    notes = [row.note for row in gossamer.summary(model).rows if row.layer == "1"]
    assert notes == ["not there when the model was converted"]


def training_bytes(density: float, std: str) -> int:
    """Bytes of parameters, gradients, momenta and positions after a real step, tensor by tensor, each once."""
    torch.manual_seed(0)
    model = gossamer.bayesianize(resnet18(num_classes=10), density, std=std)
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.01, momentum=0.9)
    if std == "curvature":
        gossamer.Curvature(model, optimizer, n_data=1000)
    loss = F.cross_entropy(model(torch.randn(2, 3, 8, 8)), torch.tensor([1, 2]))
    (loss if std == "curvature" else loss + gossamer.kl(model) / 1000).backward()
    optimizer.step()
    held = [*model.parameters(), *(parameter.grad for parameter in model.parameters())]
    held += [value for state in optimizer.state.values() for value in state.values() if isinstance(value, torch.Tensor)]
    held += [buffer for weight in sparse_weights(model).values() for buffer in weight.buffers()]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in held}
    assert len(storages) == len(held)
    return sum(storages.values())


def test_a_sparse_resnet_trains_in_six_percent_of_the_memory_of_dense_inference():
    """Per active weight six float32 and one int32, 28 bytes; per dense weight 24: 5.8 % at density 0.05."""
    sparse, dense = training_bytes(0.05, "gradient"), training_bytes(1.0, "gradient")
    assert dense > 24 * 11_164_352
    assert sparse <= 0.06 * dense
    # Mean, gradient, momentum, curvature and squares: 24 bytes with the position, the estimate of a pass not counted.
    assert training_bytes(0.05, "curvature") <= 24 / 28 * 1.01 * sparse


KINDS = [("gradient", ["raw_std"], 4), ("curvature", ["curvature", "grad_square"], 12)]


@pytest.mark.parametrize(("std", "vectors", "n_numbers"), KINDS)
@pytest.mark.parametrize("density", [0.05, 1.0])
def test_a_saved_network_holds_nothing_dense(density, std, vectors, n_numbers):
    model = gossamer.bayesianize(nn.Linear(100, 200), density, std=std)
    state = model.state_dict()
    n_active = round(density * 20_000)
    expected = {f"weight.{vector}": n_active for vector in ("mean", *vectors)} | {"bias": 200}
    # Prior, mode, noise, calibration; T/N, δ, memory, number of estimates; what is known of their noise.
    expected["weight._extra_state"] = n_numbers
    if density < 1:
        expected["weight.support.position"] = n_active
    assert {name: tensor.numel() for name, tensor in state.items()} == expected
