"""A checkpoint is whole, or recognised as damaged and passed over."""

import numpy as np
import pytest
from checkpoints import CheckpointInvalidError, find_checkpoint, load_checkpoint, save_checkpoint
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

ARRAYS = {"parameters": np.arange(50, dtype=np.float32), "first_moment": np.ones((3, 4), np.float32)}


def _save(directory, step, keep=10):
    return save_checkpoint(directory, step, {"recipe": {"seed": 5}}, ARRAYS, keep)


def test_what_was_saved_is_what_is_loaded(tmp_path):
    path = _save(tmp_path, 12)
    assert path.is_absolute()
    assert path.name == "step-000012.npz"
    checkpoint = load_checkpoint(path)
    assert checkpoint.step == 12
    assert checkpoint.header["recipe"] == {"seed": 5}
    assert checkpoint.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
        assert checkpoint.arrays[name].dtype == array.dtype
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000012.npz"]


@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(position=st.floats(0, 1, exclude_max=True), mask=st.integers(1, 255))
def test_a_changed_byte_is_noticed_or_changes_nothing(tmp_path, position, mask):
    content = bytearray(_save(tmp_path, 1).read_bytes())
    content[int(position * len(content))] ^= mask
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(content)
    try:
        checkpoint = load_checkpoint(damaged)
    except CheckpointInvalidError:
        return
    assert checkpoint.step == 1
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)


def test_a_rewritten_array_with_a_correct_archive_is_refused(tmp_path):
    path = _save(tmp_path, 1)
    with np.load(path) as stored:
        content = {name: stored[name] for name in stored.files}
    content["parameters"] = content["parameters"] + 1
    np.savez(path, **content)
    with pytest.raises(CheckpointInvalidError, match="SHA-256"):
        load_checkpoint(path)


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_newest_checkpoint_falls_back_to_the_one_before(tmp_path, share):
    _save(tmp_path, 1)
    newest = _save(tmp_path, 2)
    newest.write_bytes(newest.read_bytes()[: int(share * newest.stat().st_size)])
    told = []
    found = find_checkpoint(newest, tmp_path, told.append)
    assert found is not None
    assert found.step == 1
    assert len(told) == 1
    assert str(newest) in told[0]


def test_an_order_to_restore_an_older_checkpoint_is_obeyed(tmp_path):
    older = _save(tmp_path, 1)
    _save(tmp_path, 2)
    assert find_checkpoint(older, tmp_path, print).step == 1
    assert find_checkpoint(None, tmp_path, print).step == 2


def test_nothing_to_resume_from(tmp_path):
    assert find_checkpoint(None, None, print) is None
    assert find_checkpoint(tmp_path / "gone.npz", tmp_path / "absent", lambda _: None) is None


def test_only_the_newest_up_to_the_current_step_are_kept(tmp_path):
    for step in (1, 2, 3, 9):
        _save(tmp_path, step)
    _save(tmp_path, 4, keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "step-000003.npz",
        "step-000004.npz",
        "step-000009.npz",
    ]


def test_a_failed_write_leaves_the_old_checkpoint_and_no_rubbish(tmp_path):
    path = _save(tmp_path, 1)
    before = path.read_bytes()
    with pytest.raises(TypeError):
        save_checkpoint(tmp_path, 1, {"recipe": object()}, ARRAYS, 3)
    with pytest.raises(ValueError, match="reserved"):
        save_checkpoint(tmp_path, 1, {}, {"sha256": ARRAYS["parameters"]}, 3)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]
