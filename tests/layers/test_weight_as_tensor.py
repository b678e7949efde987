"""Code that takes the weight of a layer for a tensor: it reads a draw, and cannot write."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn

import gossamer
from gossamer.layers import sparse_weights


@pytest.fixture
def layer():
    torch.manual_seed(0)
    return gossamer.bayesianize(nn.Linear(6, 4), density=0.5, std="gradient")


@pytest.fixture
def silent(layer):
    layer.weight.noisy = False
    return layer


def test_shape_and_kind(layer):
    weight = layer.weight
    assert (weight.shape, weight.size(), weight.size(0), weight.size(-1)) == ((4, 6), (4, 6), 4, 6)
    assert (weight.dim(), weight.ndim, weight.numel(), weight.requires_grad) == (2, 2, 24, True)
    assert (weight.dtype, weight.device.type) == (torch.float32, "cpu")


READS = {
    "t": lambda w: w.t(),
    "T": lambda w: w.T,
    "mT": lambda w: w.mT,
    "norm": lambda w: w.norm(),
    "norm of rows": lambda w: w.norm(dim=1, keepdim=True),
    "abs": lambda w: w.abs().max(),
    "view": lambda w: w.view(2, 2, 6),
    "detach": lambda w: w.detach(),
    "index": lambda w: w[1:, ::2],
    "scaled": lambda w: 2 * w / 3 - 1,
    "matmul": lambda w: torch.ones(3, 4) @ w,
    "function": lambda w: torch.einsum("oi,i->o", w, torch.ones(6)),
    "stack": lambda w: torch.stack([w, w]),
    "linear": lambda w: F.linear(torch.ones(3, 6), w, torch.ones(4)),
    "linear by name": lambda w: F.linear(input=torch.ones(3, 6), weight=w),
    "normalize": lambda w: F.normalize(w, dim=1),
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_reading(silent, read):
    torch.testing.assert_close(read(silent.weight), read(silent.dense_mean()))


@pytest.mark.parametrize(
    "read", [lambda w: w.t(), lambda w: F.linear(torch.ones(3, 6), w), lambda w: w @ torch.ones(6)]
)
def test_what_is_read_is_a_draw_with_gradients(layer, read):
    first, second = read(layer.weight), read(layer.weight)
    assert not torch.equal(first, second)
    first.square().sum().backward()
    assert layer.mean.grad.any()
    assert layer.weight.raw_std.grad.any()


def test_a_weight_given_twice_is_one_draw(layer):
    first, second = torch.stack([layer.weight, layer.weight])
    assert torch.equal(first, second)


WRITES = {
    "init": lambda w: nn.init.xavier_uniform_(w),
    "out": lambda w: torch.add(torch.zeros(4, 6), 1, out=w),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES)
def test_writing_is_refused(layer, write):
    with pytest.raises((TypeError, AttributeError), match="be read as a tensor"):
        write(layer.weight)


@pytest.mark.parametrize("name", ["data", "grad", "normal_", "copy_", "register_hook"])
def test_attributes_that_would_write_are_refused_by_name(layer, name):
    with pytest.raises(AttributeError, match=f"a sparse weight has no '{name}'"):
        getattr(layer.weight, name)
    assert not hasattr(layer.weight, "quant_state")


class Swin(nn.Module):
    """Reads the weights of its layers, as torchvision's Swin and timm's BEiT do."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.head = nn.Linear(8, 24), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        q, k, v = F.linear(x, self.qkv.weight, self.qkv.bias).chunk(3, -1)
        y = F.linear(F.scaled_dot_product_attention(q, k, v), self.proj.weight, self.proj.bias)
        return self.head(y.mean(1)) @ self.head.weight @ self.head.weight.t()


def test_a_network_that_reads_the_weights_of_its_layers():
    torch.manual_seed(0)
    plain, x = Swin(), torch.randn(2, 5, 8)
    model = gossamer.bayesianize(copy.deepcopy(plain), density=1.0, init="pretrained", std="gradient")
    assert not torch.equal(model(x), model(x))
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.1)
    subspace = gossamer.Subspace(model, optimizer, total_steps=4, update_period=1)
    model(x).square().sum().backward()
    subspace.step()
    for weight in sparse_weights(model).values():
        assert weight.mean.grad.any()
        weight.noisy = False
    torch.testing.assert_close(model(x), plain(x))


def test_the_dense_gradient_reaches_an_armed_weight(silent):
    """What is read goes through the probe, so updates of the subspace see it."""
    silent.weight.arm()
    (silent.weight.t().square().sum() / 2).backward()
    torch.testing.assert_close(silent.weight.disarm(), silent.dense_mean())


def test_torch_fx_keeps_converted_layers_whole():
    torch.manual_seed(0)
    body = nn.Sequential(nn.Conv1d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    model, x = gossamer.bayesianize(body, density=0.5), torch.randn(5, 2, 6)
    traced = fx.symbolic_trace(model)
    assert [node.op for node in traced.graph.nodes] == ["placeholder", *["call_module"] * 4, "output"]
    torch.manual_seed(1)
    expected = model(x)
    torch.manual_seed(1)
    assert torch.equal(traced(x), expected)


def test_predictions_of_a_sharded_network_are_refused_and_the_way_out_works(tmp_path):
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    def network():
        torch.manual_seed(0)
        return gossamer.bayesianize(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)), density=0.5)

    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model, whole, x = network(), network(), torch.randn(4, 6)
        with torch.no_grad():
            model[0].mean.add_(1)
        expected = model[0].mean.clone()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        for kind in ("weights", "local"):
            with pytest.raises(ValueError, match=r"FSDP2 .*full_state_dict=True"):
                gossamer.predict(model, x, kind=kind)
        plain = nn.Linear(4, 4)
        fully_shard(plain, mesh=init_device_mesh("cpu", (1,)))
        with pytest.raises(ValueError, match="convert the plain network first, then shard it"):
            gossamer.bayesianize(plain)
        whole.load_state_dict(get_model_state_dict(model, options=StateDictOptions(full_state_dict=True)))
        assert torch.equal(whole[0].mean, expected)
        assert gossamer.predict(whole, x).probs.shape == (4, 3)
    finally:
        torch.distributed.destroy_process_group()
