"""Options of ssvi for two figures of its paper: σ of new entries, and what other criteria would have removed."""

import torch

from gossamer import load_run
from gossamer.cli import main
from gossamer.layers import sparse_weights
from gossamer.record import Run


def test_new_weights_have_the_std_that_was_asked_for(tmp_path):
    """With a learning rate of 0 they keep it."""
    flags = ["--std", "gradient", "--regrow_std", "0.004", "--density", "0.2", "--lr", "0", "--epochs", "2"]
    flags += ["--update_period", "29", "--until", "1", "--replacement_rate", "0.5", "--batch_size", "64"]
    assert main(["train", "ssvi", "digits", *flags, "--out", str(tmp_path), "--quiet", "--n_draws", "2"]) == 0
    (update,) = [row for row in Run.open(tmp_path).updates() if row["step"] == 29]
    for name, weight in sparse_weights(load_run(tmp_path).posterior.model).items():
        new = (weight.mean == 0) & torch.isclose(weight.learnt_std, torch.tensor(0.004), rtol=1e-5)
        assert int(new.sum()) == update["replaced"].get(name, 0)
    assert sum(update["replaced"].values()) > 0


def test_the_agreement_with_other_criteria_is_in_the_run_folder(tmp_path):
    flags = ["--compare", "snr_abs, magnitude", "--density", "0.2", "--epochs", "2", "--update_period", "10"]
    assert main(["train", "ssvi", "digits", *flags, "--out", str(tmp_path), "--quiet", "--n_draws", "2"]) == 0
    updates = [row for row in Run.open(tmp_path).updates() if "removed" in row]
    assert updates
    for row in updates:
        assert list(row["iou"]) == ["snr_abs", "magnitude"]
        assert all(value == 1 for value in row["iou"]["snr_abs"].values())  # the criterion itself
        assert all(0 <= value < 1 for value in row["iou"]["magnitude"].values())
