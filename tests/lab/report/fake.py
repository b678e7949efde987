"""Run folders that look like real ones, made of a seed: for the tests of the report, and to look at it.

``python tests/lab/report/fake.py FOLDER`` writes a single run and a comparison and their reports into FOLDER.
"""

import json
import math
import random
import sys
from pathlib import Path

from gossamer.lab.record import Run
from gossamer.lab.record.contents import UPDATES
from gossamer_sweep.record import SweepRecord, TrialRecord

CLASSES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

# name -> (accuracy, log loss, calibration error, density, multiply-adds of the training); as in tables of the field
METHODS = {
    "ssvi": (0.9389, 0.205, 0.009, 0.05, 9.2e15),
    "vi": (0.9402, 0.212, 0.014, 1.0, 3.3e17),
    "rigl": (0.9341, 0.298, 0.037, 0.05, 1.1e16),
    "sgd": (0.9468, 0.231, 0.031, 1.0, 8.3e16),
}

LAYERS = [("conv1", (64, 3, 3, 3), 1024)] + [
    (f"layer{stage + 1}.{block}.conv{part}", (width, before, 3, 3), 1024 // 4**stage)
    for stage, width in enumerate((64, 128, 256, 512))
    for block in range(2)
    for part, before in ((1, width // 2 if stage and not block else width), (2, width))
]

DIGITS = [  # five dots wide, seven high, a row a number
    (14, 17, 19, 21, 25, 17, 14),
    (4, 12, 4, 4, 4, 4, 14),
    (14, 17, 1, 2, 4, 8, 31),
    (31, 2, 4, 2, 1, 17, 14),
    (2, 6, 10, 18, 31, 2, 2),
    (31, 16, 30, 1, 1, 17, 14),
    (6, 8, 16, 30, 17, 17, 14),
    (31, 1, 2, 4, 8, 8, 8),
    (14, 17, 17, 14, 17, 17, 14),
    (14, 17, 17, 15, 1, 2, 12),
]

ENVIRONMENT = {
    "time": "2026-03-14T09:26:53+00:00",
    "argv": ["/usr/local/bin/gossamer", "train", "--method", "ssvi", "--data", "digits32", "--out", "runs/my run"],
    "git_commit": "3f1c9d2e5b7a8041c6d2f9e03b5a7c8d1e4f6a90",
    "python": "3.12.8",
    "versions": {"gossamer": "0.1.0", "torch": "2.13.0", "numpy": "2.4.6"},
    "platform": "Linux-6.8.0-x86_64-with-glibc2.39",
    "cpu": "AMD EPYC 9354 32-Core Processor",
    "cpu_count": 16,
    "memory_bytes": 137_438_953_472,
    "gpu": "NVIDIA L40S",
}


def fake_run(folder, method="ssvi", seed=0, *, finished=True, coloured=False, steps=78_000, **options):
    """A classification run; ``options`` go to the configuration."""
    dice = random.Random(f"{method} {seed} {sorted(options.items())}")
    accuracy, nll, ece, density, macs = METHODS.get(method, METHODS["ssvi"])
    accuracy += dice.gauss(0, 0.0014)
    config = {
        "method": method,
        "data": "digits32",
        "model": "resnet18",
        "seed": seed,
        "steps": steps,
        "batch_size": 128,
    }
    run = Run.create(Path(folder), config | {"options": {"density": density, "update_period": 1000} | options})
    write_environment(run, method, seed)
    reached = steps if finished else steps * 2 // 5
    write_metrics(run, dice, reached, steps, accuracy, nll, density, bayesian=method in ("ssvi", "vi"))
    if density < 1:
        write_updates(run, dice, reached, steps, density)
    if finished:
        run.write_result(classification(dice, method, seed, accuracy, nll, ece, macs, density, coloured))
    return run.folder


def fake_ood(folder, seed=0):
    """A run whose detection of other inputs was measured."""
    folder = fake_run(folder, seed=seed, steps=3900)
    edges = [k / 10 for k in range(11)]
    counts = {"edges": edges, "count_in": [500 // (k + 1) for k in range(10)], "count_out": [10 * k for k in range(10)]}
    measures = {"auroc": 0.912 + 0.01 * seed, "aupr_out": 0.9, "aupr_in": 0.92, "fpr95": 0.31}
    scores = {name: measures | counts for name in ("max_probability", "entropy", "mutual_information")}
    Run.open(folder).add_evaluation("ood", {"svhn": {"n": 450, "n_test": 1464, "scores": scores}})
    return folder


def fake_evaluated(folder, seed=0):
    """A run with all that ``gossamer evaluate`` can add to it, but other inputs."""
    folder = fake_run(folder, seed=seed, steps=3900)
    run = Run.open(folder)
    result = run.result() | {"calibration": {"temperature": 0.5, "nll_before": 0.25, "nll_after": 0.21}}
    result.pop("checksums", None)
    (folder / "result.json").write_text(json.dumps(result))
    drawn = {"n_draws": 5, "step": 3900}
    both = {"before": {"accuracy": 0.941, "nll": 0.21}, "after": {"accuracy": 0.941, "nll": 0.2}}
    run.add_evaluation("temperature", {"val": drawn | {"n_val": 1000, "temperature": 1.37} | both})
    sets = {"lac": {"coverage": 0.901, "mean_size": 1.05}, "aps": {"coverage": 0.907, "mean_size": 1.34}}
    run.add_evaluation("conformal", {"0.9": drawn | {"n_val": 1000, "n_test": 9000, "kinds": sets}})
    selection = {"risk": 0.05, "confidence": 0.95, "threshold": 0.4, "coverage": 0.81, "error": 0.046}
    entry = drawn | {"n": 9000, "aurc": 0.021, "excess_aurc": 0.014, "selection": selection}
    run.add_evaluation("selective", {"entropy": entry | {"aurc": 0.019}, "mutual_information": entry})
    severities = {"accuracy": [0.9, 0.8, 0.7, 0.6, 0.5], "nll": [0.3, 0.4, 0.5, 0.6, 0.7]}
    clean = {"accuracy": 0.94, "nll": 0.2}
    run.add_evaluation("corruptions", {"generated": drawn | {"clean": clean, "corruptions": {"blur": severities}}})
    return folder


def fake_regression(folder, seed=0):
    dice = random.Random(seed)
    run = Run.create(Path(folder), {"method": "ssvi", "data": "concrete", "model": "mlp", "seed": seed, "steps": 4000})
    write_environment(run, "ssvi", seed)
    for step in range(100, 4001, 100):
        fall = math.exp(-step / 700)
        row = {"step": step, "loss": 0.4 + fall + dice.gauss(0, 0.02), "kl": 400 * (1 - fall), "lr": 0.01}
        row |= {"nll": 0.1 + fall + dice.gauss(0, 0.02), "val_rmse": 0.31 + 0.6 * fall, "val_nll": 0.25 + fall}
        run.append(row)
    metrics = {"rmse": 0.312, "nll": 0.251, "crps": 0.168, "coverage90": 0.913, "width90": 1.07, "std": 0.33}
    metrics["epistemic_std"] = 0.094
    cost = {"active_parameters": 512, "total_parameters": 10_240, "density": 0.05, "training_macs": 3.1e9}
    layers = [{"name": "0", "kind": "Linear", "shape": [50, 8], "active": 512, "total": 10_240, "dense_macs": 10_240}]
    layers[0]["std_quantiles"] = [0.01, 0.03, 0.05, 0.08, 0.2]
    head = {"method": "ssvi", "data": "concrete", "model": "mlp", "seed": seed, "n_draws": 20}
    run.write_result(head | {"metrics": metrics, "cost": cost, "layers": layers, "curves": number_curves(dice)})
    return run.folder


def number_curves(dice, n=300):
    std = [dice.uniform(0.1, 0.6) for _ in range(n)]
    mean = [dice.gauss(5, 2) for _ in range(n)]
    target = [m + dice.gauss(0, s) for m, s in zip(mean, std, strict=True)]
    levels = [k / 20 for k in range(1, 20)]
    groups = [0.15 + 0.1 * k for k in range(5)]
    edges = [-1 + k / 40 for k in range(41)]
    return {
        "points": {
            "target": target,
            "mean": mean,
            "low90": [m - 1.645 * s for m, s in zip(mean, std, strict=True)],
            "high90": [m + 1.645 * s for m, s in zip(mean, std, strict=True)],
            "std": std,
            "epistemic_std": [0.3 * s for s in std],
        },
        "coverage": {"nominal": levels, "actual": [level**1.2 for level in levels]},
        "errors": {"std": groups, "rmse": [1.1 * s for s in groups], "count": [n // 5] * 5},
        "std": {"edges": edges, "count": [dice.randint(0, 20) for _ in edges[1:]]},
        "epistemic_std": {"edges": edges, "count": [dice.randint(0, 20) for _ in edges[1:]]},
    }


def fake_rows(folder, seed=0):
    """A run on rows of numbers, whose mistakes have no pictures."""
    run = Run.create(Path(folder), {"method": "ssvi", "data": "moons", "model": "mlp", "seed": seed})
    mistakes = [{"row": k, "label": 0, "predicted": 1, "probs": [0.1, 0.9]} for k in (3, 17)]
    head = {"method": "ssvi", "data": "moons", "model": "mlp", "seed": seed, "class_names": ["upper", "lower"]}
    run.write_result(head | {"metrics": {"accuracy": 0.95}, "examples": {"surest_mistakes": mistakes}})
    return run.folder


def fake_comparison(folder, seeds=(0, 1, 2)):
    return [fake_run(Path(folder) / f"{method}-{seed}", method, seed) for method in METHODS for seed in seeds]


def write_environment(run, method, seed):
    argv = ["/usr/local/bin/gossamer", "train", "--method", method, "--seed", str(seed), "--out", str(run.folder)]
    (run.folder / "environment.json").write_text(json.dumps(ENVIRONMENT | {"argv": argv}), encoding="utf-8")


def write_metrics(run, dice, reached, steps, accuracy, nll, density, bayesian):
    slow = 1 if density < 1 else 1.25
    for step in range(390, reached + 1, 390):
        share = step / steps
        fall = math.exp(-7 * share * slow)
        row = {
            "step": step,
            "epoch": step / 390,
            "nll": 0.02 + 0.13 * (1 - share) + 1.8 * fall,
            "loss": 0.02 + 0.16 * (1 - share) + 1.9 * fall + dice.gauss(0, 0.012) * (0.2 + fall),
            "kl": 61_000 * (1 - math.exp(-5 * share)) + dice.gauss(0, 60),
            "lr": 0.01 * 0.5 * (1 + math.cos(math.pi * share)),
            "density": density,
            "examples_per_second": 11_800 + dice.gauss(0, 160) - (2600 if dice.random() < 0.04 else 0),
            "seconds": step * 128 / 11_800,
        }
        wobble = dice.gauss(0, 0.006) * (1 - share)
        row["val_accuracy"] = min(1, accuracy - 0.62 * fall - 0.05 * (1 - share) ** 2 + wobble)
        row["val_nll"] = nll + 1.7 * fall + 0.12 * (1 - share) ** 2 - 2 * wobble
        if not bayesian:
            del row["kl"]
        run.append(row)


def write_updates(run, dice, reached, steps, density):
    for step in range(1000, reached + 1, 1000):
        if step in (1000, 14_000):
            run.append({"step": step, "postponed": "the loss is still falling fast"}, UPDATES)
            continue
        rate = 0.05 * 0.5 * (1 + math.cos(math.pi * step / steps))
        active = {name: round(math.prod(shape) * density) for name, shape, _ in LAYERS}
        replaced = {name: round(n * rate * dice.uniform(0.9, 1.05)) for name, n in active.items()}
        run.append({"step": step, "rate": rate, "removed": replaced, "replaced": replaced, "active": active}, UPDATES)


def classification(dice, method, seed, accuracy, nll, ece, macs, density, coloured):
    layers = fake_layers(density)
    active, total = (sum(layer[key] for layer in layers) for key in ("active", "total"))
    n = 10_000
    doubt = {"entropy": nll * 0.92, "expected_entropy": nll * 0.71, "mutual_information": nll * 0.21}
    metrics = {"accuracy": accuracy, "nll": nll + dice.gauss(0, 0.003), "ece": abs(ece + dice.gauss(0, 0.001))}
    metrics |= {"classwise_ece": ece / 4, "marginal_l2_debiased": ece / 3, "brier": 0.092, "aurc": 0.0061} | doubt
    cost = {
        "active_parameters": active,
        "total_parameters": total,
        "density": active / total,
        "parameter_bytes": 12 * active,
        "checkpoint_bytes": 12 * active + 62_000,
        "inference_macs": sum(layer["dense_macs"] * layer["active"] / layer["total"] for layer in layers),
        "training_macs_per_example": macs / 1e7,
        "training_macs": macs,
        "seconds": 846 * (1 if density < 1 else 1.6) + dice.gauss(0, 9),
        "peak_memory_bytes": 2.31e9,
        "prediction_seconds": 0.021 if density < 1 else 0.034,
    }
    head = {"method": method, "data": "digits32", "model": "resnet18", "seed": seed, "n_draws": 5}
    body = {"metrics": metrics, "cost": cost, "layers": layers, "curves": fake_curves(dice, accuracy, ece, n)}
    return head | body | {"examples": fake_examples(dice, coloured), "class_names": CLASSES}


def fake_layers(density):
    layers = []
    for name, shape, places in LAYERS:
        total = math.prod(shape)
        share = (
            1.0 if name == "conv1" else min(1.0, density * (1.6 - 0.6 * math.log(total) / math.log(2_359_296)) / 1.0)
        )
        share = min(1.0, share * (640 / shape[0]) ** 0.5) if density < 1 else 1.0
        layer = {"name": name, "kind": "Conv2d", "shape": list(shape), "active": round(total * share), "total": total}
        layer["std_quantiles"] = [places**-0.5 * q for q in (0.05, 0.2, 0.4, 0.7, 1.5)]
        layers.append(layer | {"dense_macs": total * places})
    return layers


def fake_curves(dice, accuracy, ece, n):
    edges = [k / 15 for k in range(16)]
    counts = [0] * 3 + [round(n * 0.9 ** (12 - k) * 0.011) for k in range(3, 14)]
    counts.append(n - sum(counts))
    sure = [(edges[k] + edges[k + 1]) / 2 for k in range(14)] + [0.991]
    right = [min(1.0, max(0.0, s - 4 * ece * (1 - s) ** 0.5 + dice.gauss(0, 0.02 * (1 - s)))) for s in sure]
    right[:3] = [None] * 3
    sure[:3] = [None] * 3
    coverage = [k / 50 for k in range(1, 51)]
    doubts = [2.302585 * k / 24 for k in range(25)]
    doubtful = [round(n * 0.55 * math.exp(-0.8 * k)) + 3 for k in range(24)]

    def split(counts):
        return [round(c * (0.6 + 0.4 * k / len(counts))) for k, c in enumerate(counts)]

    bell = [math.exp(-((k - 22) ** 2) / 60) + 0.5 * math.exp(-((k - 9) ** 2) / 40) for k in range(40)]
    return {
        "reliability": {"edges": edges, "confidence": sure, "accuracy": right, "count": counts},
        "entropy": {"edges": doubts, "count": doubtful, "right": split(doubtful)},
        "mutual_information": {"edges": [d / 8 for d in doubts], "count": doubtful, "right": split(doubtful)},
        "confusion": confusion(accuracy, n // 10),
        "selective": {"coverage": coverage, "accuracy": [1 - (1 - accuracy) * c**2.2 for c in coverage]},
        "snr": {"edges": [-2.5 + k / 10 for k in range(41)], "count": [round(9000 * height) for height in bell]},
    }


def confusion(accuracy, each):
    right = round(each * accuracy)
    pairs = [(a, b, right if a == b else each - right) for a in range(10) for b in (a, (a + 1) % 10)]
    return {name: [pair[k] for pair in pairs] for k, name in enumerate(("label", "predicted", "count"))}


def fake_examples(dice, coloured):
    certain, doubtful = [], []
    for place in range(6):
        digit = (3 * place + 1) % 10
        certain.append(example(dice, digit, (digit + 3) % 10, 0.9991, 0.01, coloured))
        other = (digit + 1 + place) % 10
        doubtful.append(example(dice, digit, other if place % 3 else digit, 0.38, 0.75, coloured))
    return {"surest_mistakes": certain, "least_certain": doubtful}


def example(dice, label, predicted, top, noise, coloured):
    rest = [dice.random() ** 4 for _ in CLASSES]
    rest[predicted] = 0
    rest[label] = max(rest) * 1.6 if label != predicted else 0
    scale = (1 - top) / sum(rest)
    probs = [top if place == predicted else value * scale for place, value in enumerate(rest)]
    entropy = -sum(p * math.log(p) for p in probs if p > 0)
    image = draw(dice, label, noise)
    if coloured:
        tint = [dice.uniform(0.4, 1) for _ in range(3)]
        image = [[[round(value * part) for part in tint] for value in row] for row in image]
    body = {"image": image, "label": label, "predicted": predicted, "probs": probs}
    return body | {"entropy": entropy, "mutual_information": entropy * 0.31}


def draw(dice, digit, noise):
    """A digit of dots on 28 × 28, soft at its edges, shifted and noisy."""
    across, down = 5 + dice.randint(-2, 2), 3 + dice.randint(-1, 1)

    def ink(x, y):
        column, row = (x - across) / 3.4, (y - down) / 3.2
        inside = 0 <= column < 5 and 0 <= row < 7
        return 1.0 if inside and DIGITS[digit][int(row)] >> (4 - int(column)) & 1 else 0.0

    def soft(x, y):
        near = [ink(x + a, y + b) for a in (-1, 0, 1) for b in (-1, 0, 1)]
        return 0.55 * ink(x, y) + 0.45 * sum(near) / 9

    grain = 0.9 * noise
    values = [
        [soft(x, y) * (1 - 0.5 * noise) + dice.uniform(-grain, grain) * 0.6 for x in range(28)] for y in range(28)
    ]
    return [[round(255 * min(1, max(0, value))) for value in row] for row in values]


def fake_sweep(folder):
    """The folder of a sweep: finished, pruned, failed and running trials over a range and a few values."""
    folder.mkdir(parents=True)
    generator, trials = random.Random(7), []
    for number in range(20):
        state = "failed" if number == 3 else "running" if number == 19 else "pruned" if number % 3 == 2 else "finished"
        values = {"lr": 10 ** generator.uniform(-4, -1), "removal": generator.choice(["snr", "magnitude"])}
        values |= {"members": generator.randint(1, 4), "weight_decay": 10 ** generator.uniform(-5, -3)}
        level = 0.1 + abs(math.log10(values["lr"]) + 2) * 0.3
        epochs = [[k, level * (1 + 2 / k)] for k in range(1, 4 if state == "pruned" else 11)]
        objective = epochs[-1][1] if state in ("finished", "pruned") else None
        failure = "training diverged at step 7: <b>a loss of 1e9</b>" if state == "failed" else ""
        name = f"trial-{number:04d}"
        trials.append(TrialRecord(number, state, name, values, objective, epochs, 0, 12.5, failure))
    space = {"lr": "log:0.0001..0.1", "removal": "snr,magnitude", "members": "1..4", "weight_decay": "log:1e-05..0.001"}
    shares = {"lr": 0.8, "removal": 0.1, "members": 0.06, "weight_decay": 0.04}
    told = ("first", "ssvi", "digits", "nll", "lower", "median", 20, space, shares, trials)
    record = SweepRecord(*told, "gossamer train ssvi digits --lr 0.01")
    record.write(folder)
    fake_run(folder / record.best.folder)
    return folder


if __name__ == "__main__":
    from gossamer.lab.report import write_report

    root = Path(sys.argv[1])
    root.mkdir(parents=True, exist_ok=True)
    print(write_report([fake_run(root / "single")], root / "single.html"))
    print(write_report([fake_run(root / "unfinished", finished=False)], root / "unfinished.html"))
    print(write_report([fake_regression(root / "regression")], root / "regression.html"))
    print(write_report([fake_rows(root / "rows")], root / "rows.html"))
    print(write_report(fake_comparison(root / "several"), root / "several.html"))
