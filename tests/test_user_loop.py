"""The ten lines of the README, verbatim, on five kinds of network: each converts, trains, predicts, saves and loads."""

import io

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import gossamer
from gossamer.models import mlp, resnet18, vit_tiny


class UNet(nn.Module):
    """Two levels with a skip connection; transposed convolution on the way up; one class map a pixel."""

    def __init__(self):
        super().__init__()
        self.down = nn.Conv2d(3, 8, 3, stride=2, padding=1)
        self.middle = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1))
        self.up = nn.ConvTranspose2d(8, 8, 2, stride=2)
        self.head = nn.Conv2d(8 + 3, 4, 1)

    def forward(self, x):
        up = self.up(F.relu(self.middle(self.down(x))))
        return self.head(torch.cat([up, x], 1))


def conv1d():
    return nn.Sequential(
        nn.Conv1d(2, 16, 5, padding=2),
        nn.ReLU(),
        nn.Conv1d(16, 16, 5, padding=2, groups=2),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.Linear(16, 4),
    )


NETWORKS = {
    "mlp": (lambda: mlp(20, (64, 64), 4), (20,), ()),
    "resnet18": (lambda: resnet18(num_classes=4), (3, 8, 8), ()),
    "vision transformer": (lambda: vit_tiny(4, image_size=8, patch_size=4, dim=24, depth=2, heads=3), (3, 8, 8), ()),
    "conv1d": (conv1d, (2, 16), ()),
    "u-net": (UNet, (3, 8, 8), (8, 8)),
}


@pytest.mark.parametrize("std", ["curvature", "gradient"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_loop_of_the_readme(name, std):
    make, in_shape, out_shape = NETWORKS[name]
    torch.manual_seed(0)
    x_all, y_all = torch.randn(24, *in_shape), torch.randint(4, (24, *out_shape))
    dataset = torch.utils.data.TensorDataset(x_all, y_all)
    loader = torch.utils.data.DataLoader(dataset, batch_size=6)
    total_steps, step = 4 * len(loader), 0

    def kl_weight(step):
        return min(1.0, step / (total_steps / 2))

    model = gossamer.bayesianize(make(), density=0.05, std=std)
    optimizer = torch.optim.SGD(gossamer.param_groups(model), lr=0.01, momentum=0.9)
    if std == "curvature":
        gossamer.Curvature(model, optimizer, n_data=len(dataset))
    subspace = gossamer.Subspace(model, optimizer, total_steps=total_steps, update_period=5)
    n_active, start = gossamer.active_parameters(model), {n: t.clone() for n, t in model.state_dict().items()}

    for _ in range(4):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            if std == "gradient":
                loss = loss + kl_weight(step) * gossamer.kl(model) / len(dataset)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            subspace.step()
            step += 1
            assert gossamer.active_parameters(model) == n_active

    assert loss.isfinite()
    learnt = {n: t for n, t in model.state_dict().items() if n.endswith(("mean", "curvature", "raw_std"))}
    assert all(not torch.equal(tensor, start[name]) for name, tensor in learnt.items())
    assert len(subspace.record) == 2  # steps 5 and 10 of the first three quarters of 16
    assert sum(sum(update["replaced"].values()) for update in subspace.record) > 0

    prediction = gossamer.predict(model, x_all[:5], n_draws=3)
    assert prediction.samples.shape == (3, 5, 4, *out_shape)
    assert prediction.entropy.shape == prediction.mutual_information.shape == (5, *out_shape)
    torch.testing.assert_close(prediction.probs.sum(1), torch.ones(5, *out_shape))

    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    copy = gossamer.bayesianize(make(), density=0.05, std=std)
    copy.load_state_dict(torch.load(file, weights_only=True))
    same = gossamer.predict(copy, x_all[:5], n_draws=3, generator=torch.Generator().manual_seed(1)).samples
    torch.testing.assert_close(
        same, gossamer.predict(model, x_all[:5], n_draws=3, generator=torch.Generator().manual_seed(1)).samples
    )
