"""The fifteen corruptions: any size, the same every time, known answers, and what JPEG of a library loses."""

import colorsys
import io
import math

import numpy as np
import pytest
import torch

from gossamer import data
from gossamer.data import CORRUPTIONS, SEVERITIES, corrupt, read_corrupted

NAMES = list(CORRUPTIONS)


def images(n=4, channels=3, height=32, width=32, seed=0):
    """Smooth random images from 0 to 1, as bytes."""
    x = torch.rand(n, channels, 6, 6, generator=torch.Generator().manual_seed(seed))
    x = torch.nn.functional.interpolate(x, size=(height, width), mode="bilinear")
    return (x * 255).round().to(torch.uint8)


def test_there_are_fifteen_with_five_levels_each():
    assert len(NAMES) == 15
    assert all(len(corruption.levels) == len(SEVERITIES) == 5 for corruption in CORRUPTIONS.values())


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 17, 23), (1, 2, 2)])
def test_shape_and_dtype_are_kept_and_something_changes(name, shape):
    x = images(3, *shape)
    for severity in SEVERITIES:
        found = corrupt(x, name, severity)
        assert (found.shape, found.dtype) == (x.shape, torch.uint8)
        assert not torch.equal(found, x) or shape == (1, 2, 2)
        as_floats = corrupt(x.float() / 255, name, severity)
        assert as_floats.dtype == torch.float32
        assert 0 <= float(as_floats.min()) <= float(as_floats.max()) <= 1
        # Both ways give the same images but for the rounding to bytes; counts of photons may jump with it.
        if name != "shot_noise":
            torch.testing.assert_close(as_floats * 255, found.float(), atol=0.51, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_an_image_gets_the_same_noise_however_many_follow(name):
    x = images(5)
    assert torch.equal(corrupt(x, name), corrupt(x, name))
    assert torch.equal(corrupt(x, name)[:2], corrupt(x[:2], name))


WITHOUT_NOISE = {
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "jpeg_compression",
}


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_is_other_noise(name):
    x = images(5)
    assert torch.equal(corrupt(x, name), corrupt(x, name, seed=1)) == (name in WITHOUT_NOISE)


# glass_blur and frost exchange one of their two levels for the other, elastic_transform goes from coarse to fine, and
# the boxes of pixelate fall on the pixels of a small image now better, now worse.
NOT_MONOTONE = {"glass_blur", "frost", "elastic_transform", "pixelate"}


@pytest.mark.parametrize("name", sorted(set(NAMES) - NOT_MONOTONE))
@pytest.mark.parametrize("size", [8, 28, 32, 64])
def test_a_higher_severity_is_further_from_the_image(name, size):
    x = images(16, 3, size, size)
    distance = [float((corrupt(x, name, severity).float() - x.float()).square().mean()) for severity in SEVERITIES]
    assert distance == sorted(distance)


SMOOTH = ["defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "contrast", "elastic_transform", "pixelate"]


@pytest.mark.parametrize("name", [*SMOOTH, "jpeg_compression"])
@pytest.mark.parametrize("size", [8, 21, 64])
def test_a_flat_image_has_nothing_to_blur_or_move(name, size):
    x = torch.full((2, 3, size, size), 136, dtype=torch.uint8)
    for severity in SEVERITIES:
        # JPEG rounds the mean of a block to a multiple of its first step, 8 · 136 being one of none.
        assert float((corrupt(x, name, severity).float() - 136).abs().max()) <= (2 if "jpeg" in name else 0)


def test_noise_has_the_moments_it_should():
    x = torch.full((64, 3, 32, 32), 0.5)
    n = x.numel()
    for severity, std in zip(SEVERITIES, CORRUPTIONS["gaussian_noise"].levels, strict=True):
        error = corrupt(x, "gaussian_noise", severity) - x
        assert abs(float(error.mean())) < 4 * std / math.sqrt(n)
        assert float(error.std()) == pytest.approx(std, rel=4 / math.sqrt(2 * n))
    for severity, photons in zip(SEVERITIES, CORRUPTIONS["shot_noise"].levels, strict=True):
        error = corrupt(x, "shot_noise", severity) - x
        std = math.sqrt(0.5 / photons)
        assert abs(float(error.mean())) < 4 * std / math.sqrt(n)
        assert float(error.std()) == pytest.approx(std, rel=4 * math.sqrt((2 + 2 / photons) / (4 * n)))
    for severity, share in zip(SEVERITIES, CORRUPTIONS["impulse_noise"].levels, strict=True):
        found = corrupt(x, "impulse_noise", severity)
        for value in (0.0, 1.0):
            assert float((found == value).float().mean()) == pytest.approx(share / 2, abs=4 * math.sqrt(share / 2 / n))


def test_brightness_raises_the_value_of_hsv():
    x = images(1, 3, 8, 8).float() / 255
    found = corrupt(x, "brightness", 4)
    for row in range(8):
        for column in range(8):
            hue, saturation, value = colorsys.rgb_to_hsv(*x[0, :, row, column].tolist())
            expected = colorsys.hsv_to_rgb(hue, saturation, min(1.0, value + 0.2))
            assert found[0, :, row, column].tolist() == pytest.approx(expected, abs=1e-5)
    assert corrupt(torch.zeros(1, 3, 4, 4), "brightness", 2).unique().tolist() == pytest.approx([0.1])


def test_contrast_shrinks_the_distance_from_the_mean_of_a_channel():
    x = images(2).double().div(255)
    mean = x.mean((2, 3), keepdim=True)
    torch.testing.assert_close(corrupt(x, "contrast", 5), mean + 0.15 * (x - mean), atol=1e-6, rtol=0)


def test_the_disc_of_defocus_spreads_a_point_over_its_pixels():
    x = torch.zeros(1, 1, 9, 9)
    x[..., 4, 4] = 1
    plus = corrupt(x, "defocus_blur", 4)[0, 0]  # radius 1: a pixel and its four neighbours
    expected = torch.zeros(9, 9)
    expected[4, 3:6] = expected[3:6, 4] = 0.2
    torch.testing.assert_close(plus, expected, atol=1e-5, rtol=0)  # the Gaussian of std 0.2 moves exp(−12.5) of it
    square = corrupt(x, "defocus_blur", 5)[0, 0]  # radius 1.5: all nine
    torch.testing.assert_close(square[3:6, 3:6], torch.full((3, 3), 1 / 9), atol=1e-6, rtol=0)


def test_motion_moves_every_point_to_one_side_within_its_angles():
    """Weights exp(−i²/2σ²) along an angle of at most 45 degrees: the centre of mass is known, its direction bounded."""
    x = torch.zeros(200, 1, 65, 65)
    x[..., 32, 32] = 1
    weights = np.exp(-(np.arange(2 * math.ceil(9 * 65 / 32) + 1) ** 2) / (2 * (2.5 * 65 / 32) ** 2))
    distance = (np.arange(len(weights)) * weights).sum() / weights.sum()
    found = corrupt(x, "motion_blur", 5)[:, 0]
    total = found.sum((1, 2))
    torch.testing.assert_close(total, torch.ones(200), atol=1e-3, rtol=0)
    at = torch.arange(65.0) - 32
    rows, columns = (found.sum(2) * at).sum(1), (found.sum(1) * at).sum(1)
    torch.testing.assert_close(torch.hypot(rows, columns), torch.full((200,), distance), atol=0.02, rtol=0)
    angles = torch.rad2deg(torch.atan2(-rows, -columns))
    assert -45.1 < float(angles.min()) < -35
    assert 35 < float(angles.max()) < 45.1


def test_zoom_keeps_the_middle_and_pixelate_makes_blocks():
    x = images(1, 1, 33, 33).float() / 255
    found = corrupt(x, "zoom_blur", 5)
    assert float(found[0, 0, 16, 16]) == pytest.approx(float(x[0, 0, 16, 16]), abs=1e-6)
    ramp = torch.arange(20.0).expand(1, 1, 20, 20) / 20
    blocks = corrupt(ramp, "pixelate", 5)[0, 0]  # 20 · 0.65 = 13 boxes
    assert len(blocks[0].unique()) == 13
    assert float(blocks.mean()) == pytest.approx(float(ramp.mean()), abs=0.01)
    assert float(blocks[0, 0]) == pytest.approx((0 + 0.05 * (20 / 13 - 1)) / (20 / 13), abs=1e-6)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 8, 8), (1, 28, 28), (3, 33, 47)])
def test_jpeg_loses_what_a_library_of_jpeg_loses(shape):
    pil = pytest.importorskip("PIL.Image")
    x = images(24, *shape).int()
    noisy = (x + torch.randint(-30, 30, x.shape, generator=torch.Generator().manual_seed(1))).clamp(0, 255).byte()
    for severity, quality in zip(SEVERITIES, CORRUPTIONS["jpeg_compression"].levels, strict=True):
        ours = corrupt(noisy, "jpeg_compression", severity)
        theirs = torch.stack([through_pil(pil, image, quality) for image in noisy])
        # The library keeps coefficients to an eighth, so about one in 8 q falls on the other side of a half of its step
        # q, and with 64 of them one in a few blocks differs. Any mistake in a table or a sign differs everywhere.
        gap, loss = (ours.float() - theirs.float()).abs().mean(), (noisy.float() - theirs.float()).abs().mean()
        assert float(gap) < 0.1 * float(loss)


def through_pil(pil, image, quality):
    array = image.permute(1, 2, 0).numpy()
    file = io.BytesIO()
    pil.fromarray(array[..., 0] if array.shape[2] == 1 else array).save(file, "JPEG", quality=quality)
    return torch.from_numpy(np.array(pil.open(file)).reshape(array.shape)).permute(2, 0, 1)


def test_fog_and_snow_only_add_light_to_black_and_clouds_fill_their_range():
    black = torch.zeros(8, 1, 28, 28)
    assert corrupt(black, "fog", 5).unique().tolist() == [0]  # it is darkened in proportion to the brightest pixel
    half = black + 0.5
    thick = corrupt(half, "fog", 5)
    # (0.5 + 1.5 p) · 0.5 / 2 for clouds p that reach 0 and 1 within the 32×32 of which 28×28 are cut.
    assert 0.125 - 1e-6 <= float(thick.min()) < 0.16
    assert 0.45 < float(thick.max()) <= 0.5 + 1e-6
    snow = corrupt(black, "snow", 1)
    assert float(snow.amin()) == pytest.approx(0.05 * 0.5, abs=1e-6)
    assert bool((snow.amax((1, 2, 3)) > 0.03).any())


def test_wrong_names_severities_and_images_are_refused():
    x = images(1)
    with pytest.raises(ValueError, match="unknown corruption 'fogg'; did you mean 'fog'"):
        corrupt(x, "fogg")
    with pytest.raises(ValueError, match="severity must be a whole number from 1 to 5; got 0"):
        corrupt(x, "fog", 0)
    with pytest.raises(ValueError, match=r"must be images .*; got \(4, 2\)"):
        corrupt(torch.zeros(4, 2), "fog")
    with pytest.raises(ValueError, match=r"bytes from 0 to 255 or floats from 0 to 1; got torch\.int64"):
        corrupt(x.long(), "fog")


def test_published_files_are_read_by_severity(tmp_path):
    x = np.random.RandomState(0).randint(0, 256, (15, 32, 32, 3), np.uint8)
    y = np.tile(np.arange(3, dtype=np.uint8), 5)
    np.save(tmp_path / "fog.npy", x)
    np.save(tmp_path / "labels.npy", y)
    found, labels = read_corrupted(tmp_path, "fog", 2)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found.numpy(), x[3:6].transpose(0, 3, 1, 2))
    assert labels.tolist() == [0, 1, 2]
    with pytest.raises(data.DataNotFoundError, match=r"snow.npy is missing: give the folder of CIFAR-10-C"):
        read_corrupted(tmp_path, "snow", 1)
    np.save(tmp_path / "snow.npy", x[:14])
    with pytest.raises(ValueError, match=r"found uint8 of shape \(14, 32, 32, 3\) and 15 labels"):
        read_corrupted(tmp_path, "snow", 1)
