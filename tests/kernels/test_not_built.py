"""Without native kernels the reference serves every layer, and a line in the log says so once."""

import pytest
import torch
from torch import nn

import gossamer
from gossamer.kernels import dispatch, library, use


@pytest.fixture(autouse=True)
def no_binary(monkeypatch):
    monkeypatch.setattr(library, "LIBRARY", {})
    monkeypatch.setattr(dispatch, "_warned", False)


def test_one_line_and_the_numbers_of_the_reference(caplog):
    layer = gossamer.bayesianize(nn.Linear(256, 256), density=0.1)
    layer.weight.noisy = False
    x = torch.randn(16, 256, requires_grad=True)
    with use("dense"):
        expected = layer(x)
        grads = torch.autograd.grad(expected.square().sum(), [x, layer.weight.mean])
    assert not caplog.records
    for kernel in ("auto", "sparse"):
        with use(kernel):
            y = layer(x)
        assert torch.equal(y, expected)
        for got, want in zip(torch.autograd.grad(y.square().sum(), [x, layer.weight.mean]), grads, strict=True):
            assert torch.equal(got, want)
    assert len(caplog.records) == 1
    assert "native kernels are not built" in caplog.text
    assert "setup.py build_ext" in caplog.text


def test_embeddings_do_not_need_them(caplog):
    layer = gossamer.bayesianize(nn.Embedding(2000, 200), density=0.1)
    layer(torch.arange(5))
    assert not caplog.records
