import math
import pickle

import pytest
import torch

from gossamer.data import CropFlip, Normalize
from gossamer.data.images import SETS


def images(n, channels=3, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1, 256, (n, channels, size, size), dtype=torch.uint8, generator=generator)


def test_normalize_is_the_formula_for_each_channel():
    x = images(4)
    normalize = Normalize((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    result = normalize(x)
    assert result.dtype == torch.float32
    for channel, (mean, std) in enumerate(zip(normalize.mean, normalize.std, strict=True)):
        expected = (x[:, channel].double() / 255 - mean) / std
        torch.testing.assert_close(result[:, channel].double(), expected, rtol=0, atol=1e-5)


def test_normalize_first_used_in_inference_mode_can_be_differentiated_through_later():
    normalize = Normalize((0.123,), (0.456,))
    with torch.inference_mode():
        normalize(images(1, channels=1))
    x = images(1, channels=1).float().requires_grad_()
    normalize(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 255 / 0.456))


@pytest.mark.parametrize("shape", [(2, 1, 8, 8), (3, 8, 8), (2, 3, 8)])
def test_images_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"expected images \(batch, 3, height, width\), got"):
        Normalize((0.0,) * 3, (1.0,) * 3)(torch.zeros(shape))


def test_crop_flip_of_what_is_no_batch_is_refused():
    with pytest.raises(ValueError, match="expected images"):
        CropFlip()(torch.zeros(3, 32, 32))


def position(original, changed, padding):
    """Offset and flip that make ``changed`` of ``original``; exactly one must."""
    size = original.shape[-1]
    padded = torch.nn.functional.pad(original, [padding] * 4)
    found = []
    for dy in range(2 * padding + 1):
        for dx in range(2 * padding + 1):
            crop = padded[:, dy : dy + size, dx : dx + size]
            found += [(dy, dx, flip) for flip in (False, True) if (crop.flip(-1) if flip else crop).equal(changed)]
    (only,) = found
    return only


def test_every_image_is_a_crop_of_its_own_flipped_half_the_time():
    n, padding = 600, 1
    x = images(n, channels=2, size=6)
    torch.manual_seed(0)
    changed = CropFlip(padding)(x)
    assert changed.dtype == x.dtype
    assert changed.shape == x.shape
    places = [position(a, b, padding) for a, b in zip(x, changed, strict=True)]
    # Four standard errors of a binomial share, for each of 9 positions and for the flip.
    for dy in range(3):
        for dx in range(3):
            share = sum(place[:2] == (dy, dx) for place in places) / n
            assert abs(share - 1 / 9) < 4 * math.sqrt(1 / 9 * 8 / 9 / n)
    assert abs(sum(place[2] for place in places) / n - 1 / 2) < 4 * math.sqrt(0.25 / n)


def test_positions_and_flips_are_independent():
    n = 4_000
    # One bright pixel in the middle tells the offset; its neighbour tells the flip.
    x = torch.zeros(n, 1, 9, 9)
    x[:, :, 4, 4], x[:, :, 4, 5] = 2, 1
    torch.manual_seed(1)
    changed = CropFlip(2)(x)[:, 0]
    flat = (changed == 2).flatten(1).float().argmax(1)
    rows, columns = flat // 9, flat % 9
    flipped = (changed == 1).flatten(1).float().argmax(1) < flat
    table = torch.stack([rows, columns, flipped.long()]).double().corrcoef()
    off = table[~torch.eye(3, dtype=torch.bool)]
    assert off.abs().max() < 4 / math.sqrt(n)
    assert rows.unique().tolist() == columns.unique().tolist() == [2, 3, 4, 5, 6]


def test_without_flip_and_padding_nothing_changes():
    x = images(5)
    assert CropFlip(padding=0, flip=False)(x).equal(x)


def test_the_edges_are_zero():
    torch.manual_seed(0)
    changed = CropFlip(4)(images(200))  # no pixel of these is 0
    zero_rows = (changed == 0).all(dim=(1, 3)).sum(1)
    assert zero_rows.min() == 0
    assert zero_rows.max() == 4


def test_crop_flip_repeats_under_a_seed_and_only_then():
    x, augment = images(16), CropFlip()
    torch.manual_seed(3)
    first = augment(x)
    second = augment(x)
    torch.manual_seed(3)
    assert augment(x).equal(first)
    assert not second.equal(first)


def test_an_empty_batch_stays_empty():
    x = images(0)
    assert CropFlip()(x).shape == Normalize((0.0,) * 3, (1.0,) * 3)(x).shape == (0, 3, 32, 32)


@pytest.mark.parametrize("name", SETS)
def test_the_parts_of_a_set_can_be_pickled_and_fit_its_images(name):
    images_of = SETS[name]
    again = pickle.loads(pickle.dumps((images_of.normalize, images_of.augment)))
    assert again == (images_of.normalize, images_of.augment)
    assert len(images_of.normalize.mean) == len(images_of.normalize.std) == images_of.shape[0]
    assert (images_of.augment == CropFlip(4)) == (name in ("cifar10", "cifar100"))
    assert len(set(images_of.class_names)) == {"cifar100": 100}.get(name, 10)


@pytest.mark.gpu
def test_transforms_run_where_the_images_are():
    x = images(64).cuda()
    torch.cuda.manual_seed(0)
    first = CropFlip()(x)
    torch.cuda.manual_seed(0)
    assert CropFlip()(x).equal(first)
    assert first.device == x.device
    torch.testing.assert_close(SETS["cifar10"].normalize(first).cpu(), SETS["cifar10"].normalize(first.cpu()))
