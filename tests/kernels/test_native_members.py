"""Native code for networks side by side trusts its arguments: wrong positions and batches must stop in Python."""

import itertools

import pytest
import torch

from gossamer.kernels import library
from gossamer.kernels.native_members import MemberShape, NativeMembers, Perceptrons, Trained

pytestmark = pytest.mark.skipif(not library.LIBRARY, reason="the native kernels are not built")

SHAPE = MemberShape(
    members=2, widths=(3, 4, 2), biases=(0, 4), others=6, noise=None, has_classes=False, columns=1, folded=False
)
LENGTHS, PRIORS = [5, 8, 5, 8], [0.5] * 4
POSITIONS = [torch.tensor([0, 3, 4, 7, 11]), None, torch.tensor([1, 2, 5, 6, 9]), None]


def group_of(n):
    return Trained(torch.full((n,), -0.5), torch.zeros(n), torch.zeros(()), torch.zeros(n), torch.zeros(n))


def members_of(groups=None):
    return NativeMembers(SHAPE, LENGTHS, PRIORS, groups or [group_of(26), group_of(26), group_of(12)])


@pytest.mark.parametrize("name", Trained._fields)
@pytest.mark.parametrize(
    "change", [lambda t: t.double(), lambda t: torch.cat([t.view(-1), torch.zeros(1)]), lambda t: t.to("meta")]
)
def test_vectors_must_be_floats_of_the_right_length(name, change):
    groups = [group_of(26), group_of(26), group_of(12)]
    groups[1] = groups[1]._replace(**{name: change(getattr(groups[1], name))})
    with pytest.raises(ValueError, match="must be float32 vectors"):
        members_of(groups=groups)


@pytest.mark.parametrize(
    ("number", "position", "error"),
    [
        (0, torch.tensor([0, 3, 4, 7]), "as long as"),
        (0, torch.tensor([0, 3, 4, 7, 11], dtype=torch.int32), "int32 or of int64"),
        (0, torch.tensor([0.0, 3.0, 4.0, 7.0, 11.0]), "int32 or of int64"),
        (0, torch.tensor([0, 3, 4, 7, 12]), "outside"),
        (0, torch.tensor([-1, 3, 4, 7, 11]), "outside"),
        (0, torch.tensor([0, 4, 3, 7, 11]), "not sorted"),
        (0, torch.tensor([0, 3, 3, 7, 11]), "not sorted"),
        (0, None, "all its entries"),
    ],
)
def test_positions_must_be_sorted_and_inside(number, position, error):
    members, positions = members_of(), list(POSITIONS)
    positions[number] = position
    with pytest.raises(ValueError, match=error):
        members.place(positions)
    with pytest.raises(ValueError, match=r"call place\(\) first"):
        members.gradients(torch.zeros(2, 3), torch.zeros(2, 1), 0.1, 0)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (torch.zeros(2, 4), torch.zeros(2, 1)),
        (torch.zeros(2, 3), torch.zeros(3, 1)),
        (torch.zeros(2, 3), torch.zeros(2, 2)),
        (torch.zeros(2, 3), torch.zeros(2)),
        (torch.zeros(2, 3), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros(2, 3), torch.zeros(2, 1, dtype=torch.float64)),
        (torch.zeros(2, 3).double(), torch.zeros(2, 1)),
        (torch.zeros(0, 3), torch.zeros(0, 1)),
        (torch.zeros(2, 3, device="meta"), torch.zeros(2, 1)),
    ],
)
def test_batches_must_fit(x, y):
    members = members_of()
    members.place(POSITIONS)
    with pytest.raises(ValueError, match="expected float32 inputs and targets"):
        members.gradients(x, y, 0.1, 0)


def test_a_batch_with_gaps_is_one_without():
    members = members_of()
    members.place(POSITIONS)
    torch.manual_seed(0)
    x, y = torch.randn(5, 3), torch.randn(5, 1)
    expected = members.gradients(x, y, 0.1, 7), members.groups[0].grad.clone()
    spread = torch.stack([x, x], -1)[..., 0], torch.stack([y, y], -1)[..., 0]
    assert not spread[0].is_contiguous()
    assert torch.equal(members.gradients(*spread, 0.1, 7), expected[0])
    assert torch.equal(members.groups[0].grad, expected[1])


def test_dense_gradients_are_those_of_a_pass():
    members = members_of()
    members.place(POSITIONS)
    members.gradients(torch.randn(5, 3), torch.randn(5, 1), 0.1, 7)
    assert members.dense_gradient(1).shape == (2, 4)
    for number in (-1, 4):
        with pytest.raises(ValueError, match="no gradient of weight"):
            members.dense_gradient(number)


@pytest.mark.parametrize("widths", [(3, 2), (6, 40, 5), (1, 7, 33, 1)])
@pytest.mark.parametrize("density", [0.0, 0.3, 1.0])
def test_fixed_networks_answer_as_dense_ones(widths, density):
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    layers = [
        (numbers(4, out, n_in) * (torch.rand(4, out, n_in, generator=generator) < density), numbers(4, out))
        for n_in, out in itertools.pairwise(widths)
    ]
    networks, x = Perceptrons(layers), numbers(75, widths[0])
    y = networks(x)
    h = x.expand(4, -1, -1)
    for i, (weight, bias) in enumerate(layers):
        h = (h.relu() if i else h) @ weight.transpose(1, 2) + bias.unsqueeze(1)
    torch.testing.assert_close(y, h, rtol=1e-12, atol=1e-12)
    assert all(torch.equal(networks(x[row : row + 1]), y[:, row : row + 1]) for row in (0, 31, 32, 74))
    assert networks(x[:0]).shape == (4, 0, widths[-1])


def test_fixed_networks_keep_what_is_no_number():
    networks = Perceptrons([(torch.ones(1, 2, 1), torch.zeros(1, 2)), (torch.ones(1, 1, 2), torch.zeros(1, 1))])
    answers = networks(torch.tensor([[float("nan")], [float("inf")], [-1.0]])).flatten()
    assert answers[0].isnan()
    assert answers[1:].tolist() == [float("inf"), 0.0]
    with pytest.raises(ValueError, match="networks of 1 inputs"):
        networks(torch.zeros(3, 2))
