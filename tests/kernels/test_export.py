"""torch.export of sparse networks with a batch of any size, at the means and with noise."""

import pytest
import torch
from torch import nn
from torch.export import Dim, export

import gossamer
from gossamer.layers import sparse_weights

NETWORKS = {
    "linear": (lambda: nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)), (64,)),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(64, 10)), (3, 8)),
    "conv2d": (
        lambda: nn.Sequential(nn.Conv2d(3, 8, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        (3, 9, 9),
    ),
}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("density", [0.1, 0.3])  # below 0.2 the choice of the kernel does not depend on the batch
@pytest.mark.parametrize("noisy", [False, True], ids=["means", "noise"])
def test_a_batch_of_any_size(name, density, noisy):
    make, shape = NETWORKS[name]
    model = gossamer.bayesianize(make(), density=density, keep_dense=()).eval()
    for weight in sparse_weights(model).values():
        weight.noisy = noisy
    program = export(model, (torch.randn(4, *shape),), dynamic_shapes=({0: Dim("batch")},)).module()
    for batch in (1, 2, 7, 8, 33):
        x = torch.randn(batch, *shape)
        found, expected = program(x), model(x)
        if noisy:
            assert found.shape == expected.shape
            assert not torch.equal(found, program(x))
        else:
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch, about itself
def test_onnx_with_a_batch_of_any_size():
    pytest.importorskip("onnxscript")
    onnx = pytest.importorskip("onnx.reference")
    model = gossamer.sparsify(NETWORKS["linear"][0](), density=0.1).eval()
    x = torch.randn(4, 64)
    program = torch.onnx.export(model, (x,), dynamo=True, dynamic_shapes=({0: Dim("batch")},), verbose=False)
    evaluator = onnx.ReferenceEvaluator(program.model_proto)
    x = torch.randn(7, 64)
    (found,) = evaluator.run(None, {evaluator.input_names[0]: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), model(x).detach(), rtol=1e-4, atol=1e-5)
