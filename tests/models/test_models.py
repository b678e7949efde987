"""The plain networks: shapes, exact sizes, gradients, refused arguments."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gossamer.models import mlp, resnet8, resnet18, resnet34, resnet50, vit_tiny, wide_resnet, wide_resnet28_10

BUILDERS = {
    "mlp": lambda num_classes, in_channels: mlp(in_channels * 32 * 32, hidden=(16,), out_features=num_classes),
    "resnet8": resnet8,
    "resnet18": resnet18,
    "resnet50": resnet50,
    "wide_resnet": lambda num_classes, in_channels: wide_resnet(10, 1, num_classes, in_channels),
    "vit_tiny": lambda num_classes, in_channels: vit_tiny(num_classes, depth=2, in_channels=in_channels),
}


def n_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def n_weights(model: nn.Module) -> int:
    return sum(m.weight.numel() for m in model.modules() if isinstance(m, nn.Linear | nn.Conv2d))


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize(("num_classes", "in_channels"), [(10, 3), (7, 1)])
def test_one_logit_a_class_and_a_gradient_for_every_parameter(name: str, num_classes: int, in_channels: int):
    torch.manual_seed(0)
    model = BUILDERS[name](num_classes, in_channels)
    logits = model(torch.randn(4, in_channels, 32, 32))
    assert logits.shape == (4, num_classes)
    nn.functional.cross_entropy(logits, torch.arange(4)).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        assert parameter.grad.abs().sum() > 0, parameter_name


@pytest.mark.parametrize("name", BUILDERS)
def test_eval_treats_examples_separately(name: str):
    torch.manual_seed(0)
    model = BUILDERS[name](10, 3).eval()
    x = torch.randn(3, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(x)[:1], model(x[:1]), rtol=1e-4, atol=1e-4)


def test_resnet18_has_the_weights_of_the_paper():
    assert n_weights(resnet18(num_classes=10)) == 11_164_352
    assert n_parameters(resnet18(num_classes=10)) == 11_173_962  # + 4 800 BN channels twice + 10 biases


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (resnet8, 78_042),
        (resnet34, 21_282_122),  # of the usual network for CIFAR
        (resnet50, 25_557_032),  # that of torchvision
        (lambda: resnet50(num_classes=10), 23_528_522),
        (wide_resnet28_10, 36_479_194),
        (lambda: wide_resnet28_10(num_classes=100), 36_536_884),
        (lambda: wide_resnet(16, 4), 2_748_890),  # 2.7 M in the paper
        (vit_tiny, 5_362_762),
        (lambda: mlp(784, (256, 256), 10), 784 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10),
        (lambda: mlp(5, (), 2), 12),
    ],
)
def test_parameter_counts(build: Callable[[], nn.Module], expected: int):
    with torch.device("meta"):
        assert n_parameters(build()) == expected


def test_convolutions_start_kaiming_normal_by_fan_out():
    torch.manual_seed(0)
    for module in resnet18().modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels * module.kernel_size[0] ** 2
            # The standard error of a standard deviation of n normal draws is std / sqrt(2 n).
            standard_error = (2 * module.weight.numel()) ** -0.5
            assert abs(module.weight.std().item() / (2 / fan_out) ** 0.5 - 1) < 5 * standard_error


def test_encoder_layers_of_the_vit_start_apart():
    torch.manual_seed(0)
    first, second = vit_tiny(depth=2).encoder
    assert not torch.equal(first.linear1.weight, second.linear1.weight)


@pytest.mark.parametrize("heads", [2, 3])
def test_a_layer_put_into_the_vit_is_used_at_inference(heads: int):
    torch.manual_seed(0)
    model = vit_tiny(dim=12, depth=1, heads=heads).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        before = model(x)
        model.encoder[0].linear1 = nn.Sequential(model.encoder[0].linear1, nn.Tanh())
        assert not torch.allclose(before, model(x))


def test_wide_resnet_drops_out_only_in_training():
    torch.manual_seed(0)
    model = wide_resnet(10, 1, dropout=0.5)
    x = torch.randn(2, 3, 32, 32)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: mlp(0), "in_features must be at least 1, not 0"),
        (lambda: mlp(4, (8, 0)), r"hidden\[1\] must be at least 1, not 0"),
        (lambda: mlp(4, (8,), 0), "out_features must be"),
        (lambda: resnet18(num_classes=0), "num_classes must be"),
        (lambda: resnet18(in_channels=-1), "in_channels must be"),
        (lambda: wide_resnet(29, 10), r"depth must be 6 n \+ 4"),
        (lambda: wide_resnet(4, 10), r"depth must be 6 n \+ 4"),
        (lambda: wide_resnet(10, 0), "width must be"),
        (lambda: wide_resnet28_10(dropout=1.0), "dropout must be"),
        (lambda: vit_tiny(image_size=30), r"image_size \(30\) must be a multiple of patch_size \(4\)"),
        (lambda: vit_tiny(dim=100), r"dim \(100\) must be a multiple of heads \(3\)"),
        (lambda: vit_tiny(depth=0), "depth must be"),
        (lambda: vit_tiny(depth=1)(torch.zeros(1, 3, 28, 28)), "images must be 32 x 32"),
    ],
)
def test_bad_arguments_are_refused_by_name(build: Callable[[], nn.Module], message: str):
    with pytest.raises(ValueError, match=message):
        build()
