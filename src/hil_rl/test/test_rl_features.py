"""The feature cache: what is stored, reused and refused; the store with images, by property."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hil_rl import features
from hil_rl.features import FeatureCache, FeatureError, Frames, ImageRing, Projection, shifts
from hil_rl.spaces import Spaces
from hil_rl.store import Batch, EpisodeStore, Step, StoreError
from hil_rl.vision import shift_frames

sys.path.insert(0, str(Path(__file__).parent))
from store_model import CAPACITY, EVENT, Model, history

SIZE, LARGEST, SEED = 6, 2, 3
IMAGES = {"wrist": ((SIZE, SIZE, 3), "uint8"), "side": ((SIZE, SIZE, 3), "uint8")}
SPACES = Spaces(
    {
        "position": ((2,), "float32"), "contact": ((), "bool"), "wrench": ((2, 1), "float64"),
        **IMAGES,
    },
    action_dim=6,
    grippers=1,
)  # fmt: skip


class FakeEncoder:
    """Seven features of an image at one position; counts how many images it saw."""

    backbone_channels, positions = 7, 1

    def __init__(self, channels: int = 7) -> None:
        self.channels, self.seen = channels, 0
        self.projection = Projection.identity(7) if channels == 7 else None

    def full(self, images: np.ndarray) -> np.ndarray:
        self.seen += len(images)
        x = images.astype(np.float32)
        parts = [x[:, 0, 0], x[:, -1, -1], x.mean((1, 2, 3), keepdims=True)[:, 0, 0]]
        return np.concatenate(parts, 1)[:, :, None] / 16.0

    def __call__(self, images: np.ndarray) -> np.ndarray:
        assert self.projection is not None
        return self.projection(self.full(images))


def cache(folder: Path, capacity: int = 16, channels: int = 7, **changes: int) -> FeatureCache:
    settings = {"augmentations": 2, "largest": LARGEST, "seed": SEED, "fit_steps": 1} | changes
    return FeatureCache(
        folder, FakeEncoder(channels), shift_frames, "weights", capacity, 2, **settings
    )


def frames_of(value: float) -> dict[str, np.ndarray]:
    """Images that follow from a number, different for each camera."""
    rng = np.random.default_rng(int(value))
    return {name: rng.integers(0, 256, shape, dtype=np.uint8) for name, (shape, _) in
            IMAGES.items()}  # fmt: skip


def with_images(step: Step) -> Step:
    step.observation = {**step.observation, **frames_of(step.observation["position"][0])}
    if step.final_observation is not None:
        final = step.final_observation
        step.final_observation = {**final, **frames_of(final["position"][0])}
    return step


def features_of(value: float, shift: np.ndarray) -> np.ndarray:
    """(cameras, 7, 1) as they have to be, from the definition."""
    rows = []
    for image in frames_of(value).values():
        padded = np.pad(image, ((LARGEST, LARGEST), (LARGEST, LARGEST), (0, 0)), mode="edge")
        moved = padded[shift[0] : shift[0] + SIZE, shift[1] : shift[1] + SIZE]
        rows.append(FakeEncoder().full(moved[None])[0])
    return np.stack(rows).astype(np.float16)


def assert_frames(batch: Batch, frames: Frames) -> None:
    """Every row's frames are those of its own state vectors, for an allowed shift."""
    for row in range(len(batch)):
        for value, got, shift in (
            (batch.state[row, 0], batch.frames[row], batch.shift[row]),
            (batch.next_state[row, 0], batch.next_frames[row], batch.next_shift[row]),
        ):
            if isinstance(frames, ImageRing):
                np.testing.assert_array_equal(got, np.stack([*frames_of(value).values()]))
            else:
                np.testing.assert_array_equal(got, features_of(value, shift))


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(EVENT, max_size=50), CAPACITY, st.booleans(), st.integers(0, 2**32 - 1), st.data())
def test_every_frame_of_every_transition(
    tmp_path_factory: pytest.TempPathFactory,
    events: list,
    capacity: int,
    cached: bool,
    seed: int,
    data: st.DataObject,
) -> None:
    """Gaps, interventions, truncations, interruptions, wrap-around; then a restart half-way."""
    folder = tmp_path_factory.mktemp("features")
    steps = [with_images(step) for step in history(events)]
    again = data.draw(st.integers(0, len(steps)))  # the process dies here and reads its log

    def make() -> tuple[EpisodeStore, Frames]:
        frames: Frames = (
            cache(folder, capacity) if cached else ImageRing(capacity, (2, SIZE, SIZE, 3))
        )
        return EpisodeStore(SPACES, capacity, frames=frames), frames

    model = Model(capacity)
    first, _ = make()
    for step in steps[:again]:
        first.add(step)
    store, frames = make()
    for step in steps:
        store.add(step)
        model.add(step)
    rng = np.random.default_rng(seed)
    for view in ("all", "demo"):
        expected = model.transitions(view)
        assert store.size(view) == len(expected)
        if not expected:
            continue
        everything = store.gather(store.slots(view))
        assert sorted(everything.state[:, 0]) == sorted(expected)
        for batch in (everything, store.sample(10, view, rng)):
            assert_frames(batch, frames)


def fill(store: EpisodeStore, first: int, last: int) -> None:
    """Steps first..last of one stream; each has a state and images that follow from its number."""
    for value in range(first, last + 1):
        store.add(with_images(history([("arm/a", "step", False, 0)] * value)[-1]))


def test_restart_computes_nothing_anew(tmp_path: Path) -> None:
    store = EpisodeStore(SPACES, 16, frames=cache(tmp_path))
    fill(store, 1, 10)
    frames = cache(tmp_path)
    again = EpisodeStore(SPACES, 16, frames=frames)
    fill(again, 1, 10)
    assert (frames.computed, frames.reused) == (0, 10)
    assert isinstance(frames.encoder, FakeEncoder) and frames.encoder.seen == 0
    assert_frames(again.gather(again.slots("all")), frames)
    fill(again, 11, 12)
    assert frames.computed == 2


def test_restart_of_a_ring_that_wrapped_around(tmp_path: Path) -> None:
    """The oldest steps of the log were overwritten: nothing is computed for them either."""
    store = EpisodeStore(SPACES, 8, frames=cache(tmp_path, 8))
    fill(store, 1, 21)
    frames = cache(tmp_path, 8)
    again = EpisodeStore(SPACES, 8, frames=frames)
    fill(again, 1, 13)
    assert again.size("all") == 0  # slots hold frames of later steps
    fill(again, 14, 21)
    assert (frames.computed, frames.reused) == (0, 8)
    assert again.size("all") == store.size("all") == 7
    assert_frames(again.gather(again.slots("all")), frames)


def test_another_log_is_noticed(tmp_path: Path) -> None:
    fill(EpisodeStore(SPACES, 16, frames=cache(tmp_path)), 1, 5)
    frames = cache(tmp_path)
    store = EpisodeStore(SPACES, 16, frames=frames)
    fill(store, 1, 2)
    fill(store, 7, 9)
    assert (frames.computed, frames.reused) == (3, 2)


def test_damaged_row_is_computed_anew(tmp_path: Path) -> None:
    fill(EpisodeStore(SPACES, 16, frames=cache(tmp_path)), 1, 5)
    size = 2 * 2 * 7 * 2
    with open(tmp_path / "features.f16", "r+b") as file:
        file.seek(2 * size)
        file.write(b"\x01\x02\x03")
    frames = cache(tmp_path)
    store = EpisodeStore(SPACES, 16, frames=frames)
    fill(store, 1, 5)
    assert (frames.computed, frames.reused) == (1, 4)
    assert_frames(store.gather(store.slots("all")), frames)


@pytest.mark.parametrize("change", [{"seed": 9}, {"largest": 1}, {"augmentations": 3}])
def test_other_settings_discard_the_folder(tmp_path: Path, change: dict[str, int]) -> None:
    fill(EpisodeStore(SPACES, 16, frames=cache(tmp_path)), 1, 5)
    frames = cache(tmp_path, **change)
    fill(EpisodeStore(SPACES, 16, frames=frames), 1, 5)
    assert (frames.computed, frames.reused) == (5, 0)


def test_nothing_is_sampled_before_the_projection_is_fitted(tmp_path: Path) -> None:
    frames = cache(tmp_path, channels=3, fit_steps=4)
    store = EpisodeStore(SPACES, 16, frames=frames)
    fill(store, 1, 3)
    assert store.size("all") == 0 and frames.missing == 1
    with pytest.raises(StoreError, match="1 more steps"):
        store.sample(2, "all", np.random.default_rng(0))
    fill(store, 4, 4)
    assert store.size("all") == 3 and frames.missing == 0
    batch = store.gather(store.slots("all"))
    projection = frames.encoder.projection
    assert projection is not None
    for row in range(3):
        full = features_of(batch.state[row, 0], batch.shift[row]).astype(np.float32)
        np.testing.assert_allclose(batch.frames[row], projection(full), atol=2e-2)

    again = cache(tmp_path, channels=3, fit_steps=4)
    fill(EpisodeStore(SPACES, 16, frames=again), 1, 4)
    assert again.computed == 0
    assert again.encoder.projection is not None
    assert again.encoder.projection.digest == projection.digest


def test_projection_of_a_checkpoint_is_kept(tmp_path: Path) -> None:
    """Features that were made with another one are discarded."""
    fill(EpisodeStore(SPACES, 16, frames=cache(tmp_path, channels=3)), 1, 3)
    encoder = FakeEncoder(3)
    rng = np.random.default_rng(0)
    encoder.projection = Projection(
        rng.normal(size=7).astype(np.float32), rng.normal(size=(3, 7)).astype(np.float32)
    )
    wanted = encoder.projection.digest
    frames = FeatureCache(tmp_path, encoder, shift_frames, "weights", 16, 2, 2, LARGEST, SEED, 1)
    fill(EpisodeStore(SPACES, 16, frames=frames), 1, 3)
    assert frames.computed == 3 and encoder.projection.digest == wanted


def test_fitting_to_fewer_frames_on_request(tmp_path: Path) -> None:
    frames = cache(tmp_path, channels=2, fit_steps=10)
    store = EpisodeStore(SPACES, 16, frames=frames)
    with pytest.raises(FeatureError, match="no frame"):
        frames.fit()
    fill(store, 1, 5)
    frames.fit()
    assert store.size("all") == 4


def test_shifts_are_drawn_once_per_step() -> None:
    drawn = np.array([shifts(0, serial, 2, 4) for serial in range(500)])
    assert drawn.min() == 0 and drawn.max() == 8
    np.testing.assert_array_equal(shifts(0, 17, 2, 4), drawn[17])
    assert np.abs(drawn.mean((0, 1)) - 4.0).max() < 0.4


def test_images_of_a_trained_backbone_are_shifted_anew() -> None:
    frames = ImageRing(16, (2, SIZE, SIZE, 3), 0, 4)
    store = EpisodeStore(SPACES, 16, frames=frames)
    fill(store, 1, 3)
    rng = np.random.default_rng(0)
    drawn = {tuple(s) for _ in range(10) for s in store.sample(8, "all", rng).shift}
    assert len(drawn) > 30
    assert (store.gather(store.slots("all")).shift == 4).all()  # as recorded


def test_images_on_disk(tmp_path: Path) -> None:
    frames = ImageRing(16, (2, SIZE, SIZE, 3), 1, LARGEST, SEED, tmp_path)
    store = EpisodeStore(SPACES, 16, frames=frames)
    fill(store, 1, 20)
    assert_frames(store.gather(store.slots("all")), frames)
    assert frames.nbytes < ImageRing(16, (2, SIZE, SIZE, 3)).nbytes


def test_full_disk_is_refused_with_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = features.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(features.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(FeatureError, match="capacity of at most 17"):
        cache(tmp_path, 200)


def test_store_refuses_images_without_a_place_for_them() -> None:
    with pytest.raises(StoreError, match="no `frames` for the images"):
        EpisodeStore(SPACES, 16)
    with pytest.raises(StoreError, match="capacity of 8, not 16"):
        EpisodeStore(SPACES, 16, frames=ImageRing(8, (2, SIZE, SIZE, 3)))


def test_wrong_image_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    store = EpisodeStore(SPACES, 16, frames=cache(tmp_path))
    fill(store, 1, 2)
    step = with_images(history([("arm/a", "step", False, 0)] * 3)[-1])
    step.observation = {**step.observation, "wrist": np.zeros((SIZE, SIZE, 1), np.uint8)}
    with pytest.raises(StoreError, match="'wrist' is uint8 of shape"):
        store.add(step)
    assert store.counts.online == 2
