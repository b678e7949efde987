"""Adapters of PEFT's kind SHiRA: written and read without PEFT, and by PEFT itself where it is installed."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import gossamer
from gossamer.deploy.shira import read_shira, write_shira
from gossamer.layers import sparse_weights

X = torch.randn(8, 12, generator=torch.Generator().manual_seed(3))


def plain():
    torch.manual_seed(0)
    net = nn.Sequential()
    net.body, net.act, net.wide = nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, 40)
    net.classifier = nn.Linear(40, 3)
    return net


def changed(**options):
    model = gossamer.adapt(plain(), 0.1, **options)
    for weight in sparse_weights(model).values():
        weight.mean.data.normal_(std=0.1)
    model.classifier.bias.data.add_(1)
    return model


def at_the_means(model):
    return gossamer.draw(model, at_mean=True).eval()(X)


def test_means_and_head_come_back(tmp_path):
    model = changed()
    again = read_shira(write_shira(model, tmp_path / "adapter"), plain(), init_std=0.02)
    assert torch.equal(at_the_means(again), at_the_means(model))
    for one, other in zip(sparse_weights(model).values(), sparse_weights(again).values(), strict=True):
        assert torch.equal(one.support.position, other.support.position)
        assert torch.equal(one.mean, other.mean)
        torch.testing.assert_close(other.std, torch.full_like(other.mean, 0.02))
    assert [name for name, one in again.named_parameters() if one.requires_grad] == [
        name for name, one in model.named_parameters() if one.requires_grad
    ]
    F = nn.functional  # and it trains on
    F.cross_entropy(again.train()(X), torch.arange(8) % 3).backward()
    assert bool(again.wide.weight.mean.grad.any())


def test_peft_reads_what_is_written_and_is_read(tmp_path):
    peft = pytest.importorskip("peft")
    model = changed()
    theirs = peft.PeftModel.from_pretrained(plain(), write_shira(model, tmp_path / "ours")).eval()
    with torch.sparse.check_sparse_tensor_invariants():  # PEFT leaves it open, which is a warning
        assert torch.equal(theirs(X), at_the_means(model))
    config = peft.ShiraConfig(r=2, target_modules=["body", "wide"], modules_to_save=["classifier"], init_weights=False)
    other = peft.get_peft_model(plain(), config).eval()
    other.save_pretrained(tmp_path / "theirs")
    ours = read_shira(tmp_path / "theirs", plain())
    with torch.sparse.check_sparse_tensor_invariants():
        assert torch.equal(at_the_means(ours), other(X))
    assert gossamer.active_parameters(ours) == 2 * (12 + 40) + 2 * (40 + 40)


def test_what_an_adapter_cannot_hold(tmp_path):
    for model, words in (
        (plain(), "that gossamer.adapt has made"),
        (changed(dense=("classifier", "wide.bias")), "cannot hold the bias of 'wide'"),
        (gossamer.adapt(nn.Sequential(nn.Conv1d(4, 8, 3)), 0.1, dense=()), "nn.Linear alone, and 0 is none"),
        (gossamer.adapt(nn.Sequential(nn.Linear(90, 90), nn.Linear(90, 2)), 0.3, dense=()), "1 is too small"),
    ):
        with pytest.raises(ValueError, match=words) as caught:
            write_shira(model, tmp_path / "adapter")
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "adapter").exists()


def test_adapters_that_are_not_for_this_network(tmp_path):
    folder = write_shira(changed(), tmp_path / "adapter")
    file, config = folder / "adapter_model.safetensors", folder / "adapter_config.json"
    with pytest.raises(ValueError, match="body is no linear layer of this network"):
        read_shira(folder, nn.Sequential(nn.Linear(12, 40)))
    small = plain()
    small.wide, small.classifier = nn.Linear(40, 20), nn.Linear(20, 3)
    with pytest.raises(ValueError, match="wide has positions outside of its shape"):
        read_shira(folder, small)
    tensors = load_file(file)
    twice = tensors | {"base_model.model.wide.shira_indices": torch.zeros(2, 160, dtype=torch.int32)}
    save_file(twice, file)
    with pytest.raises(ValueError, match="must be sorted, unique"):
        read_shira(folder, plain())
    file.write_bytes(b"no tensors")
    with pytest.raises(ValueError, match=r"adapter_model\.safetensors is broken"):
        read_shira(folder, plain())
    save_file(tensors, file)
    config.write_text(json.dumps({"peft_type": "LORA"}))
    with pytest.raises(ValueError, match="an adapter of kind 'LORA'; give the folder of a SHiRA adapter"):
        read_shira(folder, plain())
