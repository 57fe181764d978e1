"""The training program under the events that a compute network brings: kill, damage, eviction, lost ranks, resizing."""

import signal
from pathlib import Path

import pytest

SMALL = ["--layers", "1", "--hidden", "32", "--heads", "2", "--seq", "32", "--batch", "8"]
FORTY = [*SMALL, "--steps", "40", "--checkpoint-every", "10"]


def _codes(ranks):
    return [rank.wait() for rank in ranks]


def _kill(ranks):
    for rank in ranks:
        rank.process.send_signal(signal.SIGKILL)
    _codes(ranks)


@pytest.fixture
def uninterrupted(launcher):
    ranks = launcher.gang(2, FORTY)
    assert _codes(ranks) == [0, 0], ranks[0].lines
    losses = ranks[0].losses()
    assert list(losses) == list(range(1, 41))
    return losses


def test_a_killed_and_resumed_run_repeats_the_uninterrupted_one_to_the_last_digit(
    launcher, until, tmp_path, uninterrupted
):
    # Far from its end for as long as the one who kills it may stand still.
    first = launcher.gang(2, [*FORTY, "--step-time-s", "0.25"], MERIDIAN_CHECKPOINT_DIR=str(tmp_path))
    until(lambda: first[0].last_step() >= 12, "step 12")
    _kill(first)
    before = first[0].losses()
    newest = first[0].messages("checkpoint")[-1]
    assert before.keys() < set(range(1, 41))
    # A step is told before its checkpoint is.
    assert newest["step"] in {max(before) // 10 * 10, (max(before) - 1) // 10 * 10}

    second = launcher.gang(
        2,
        FORTY,
        MERIDIAN_CHECKPOINT_DIR=str(tmp_path),
        MERIDIAN_RESTORE_FROM=newest["path"],
        MERIDIAN_EPOCH="1",
    )
    assert _codes(second) == [0, 0], second[0].lines
    after = second[0].losses()
    assert list(after) == list(range(newest["step"] + 1, 41))
    assert before == {step: uninterrupted[step] for step in before}
    assert after == {step: uninterrupted[step] for step in after}
    assert len(set(uninterrupted.values())) == 40


def test_a_damaged_newest_checkpoint_costs_one_interval_and_not_the_run(launcher, tmp_path, uninterrupted):
    assert _codes(launcher.gang(2, FORTY, MERIDIAN_CHECKPOINT_DIR=str(tmp_path))) == [0, 0]
    newest = tmp_path / "step-000040.npz"
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)
    ranks = launcher.gang(2, FORTY, MERIDIAN_CHECKPOINT_DIR=str(tmp_path), MERIDIAN_RESTORE_FROM=str(newest))
    assert _codes(ranks) == [0, 0]
    assert any("damaged" in line and newest.name in line for line in ranks[0].lines)
    assert ranks[0].losses() == {step: uninterrupted[step] for step in range(31, 41)}


def test_sigterm_to_any_one_rank_saves_the_last_step_and_ends_all_with_143(launcher, until, tmp_path, uninterrupted):
    first = launcher.gang(
        2,
        [*FORTY, "--checkpoint-every", "0", "--step-time-s", "0.25", "--stopping-patience-s", "60"],
        MERIDIAN_CHECKPOINT_DIR=str(tmp_path),
    )
    until(lambda: first[0].last_step() >= 5, "step 5")
    first[1].process.send_signal(signal.SIGTERM)
    assert _codes(first) == [143, 143]
    last = first[0].last_step()
    assert first[0].messages("checkpoint") == [{"step": last, "path": str(tmp_path / f"step-{last:06d}.npz")}]
    second = launcher.gang(2, FORTY, MERIDIAN_CHECKPOINT_DIR=str(tmp_path))
    assert _codes(second) == [0, 0]
    assert first[0].losses() | second[0].losses() == uninterrupted
    assert min(second[0].losses()) == last + 1


def test_sigterm_saves_even_when_another_rank_hangs(launcher, until, tmp_path):
    ranks = launcher.gang(
        2, [*SMALL, "--steps", "100000", "--checkpoint-every", "0"], MERIDIAN_CHECKPOINT_DIR=str(tmp_path)
    )
    until(lambda: ranks[0].last_step() >= 5, "step 5")
    ranks[1].process.send_signal(signal.SIGSTOP)
    ranks[0].process.send_signal(signal.SIGTERM)
    assert ranks[0].wait() == 143
    assert Path(ranks[0].messages("checkpoint")[-1]["path"]).is_file()


def test_sigterm_before_the_gang_is_complete(launcher, until):
    rank = launcher.gang(2, SMALL, started=1)[0]
    until(lambda: any("rank 0 of 2" in line for line in rank.lines), "the rank to wait for the other")
    rank.process.send_signal(signal.SIGTERM)
    assert rank.wait() == 143


@pytest.mark.parametrize("lost", [0, 2])
def test_when_one_rank_dies_the_others_leave_and_not_as_a_success(launcher, until, lost):
    ranks = launcher.gang(3, [*SMALL, "--steps", "100000"])
    until(lambda: ranks[0].last_step() >= 3, "step 3")
    ranks[lost].process.send_signal(signal.SIGKILL)
    assert [rank.wait() for index, rank in enumerate(ranks) if index != lost] == [1, 1]
    assert not any("no data from" in line for rank in ranks for line in rank.lines), (
        "by the broken connection, not by a limit"
    )


def test_a_run_may_resume_with_another_number_of_ranks(launcher, tmp_path, uninterrupted):
    first = launcher.gang(1, [*FORTY[:-2], "--checkpoint-every", "20"], MERIDIAN_CHECKPOINT_DIR=str(tmp_path))
    assert _codes(first) == [0]
    three = launcher.gang(3, FORTY, MERIDIAN_RESTORE_FROM=str(tmp_path / "step-000020.npz"))
    assert _codes(three) == [0, 0, 0]
    assert list(three[0].losses()) == list(range(21, 41))
    for step, loss in three[0].losses().items():
        assert loss == pytest.approx(uninterrupted[step], rel=1e-3)


def test_a_checkpoint_of_another_model_is_refused_by_name(launcher, tmp_path):
    assert _codes(launcher.gang(1, [*SMALL, "--steps", "1"], MERIDIAN_CHECKPOINT_DIR=str(tmp_path))) == [0]
    [rank] = launcher.gang(1, [*SMALL, "--hidden", "64"], MERIDIAN_CHECKPOINT_DIR=str(tmp_path))
    assert rank.wait() == 2
    assert any("step-000001.npz" in line and "'hidden': 32" in line for line in rank.lines)


def test_it_learns_and_only_rank_zero_reports(launcher):
    ranks = launcher.gang(2, ["--steps", "100", "--hidden", "64", "--batch", "16"])
    assert _codes(ranks) == [0, 0]
    losses = ranks[0].losses()
    assert losses[1] > 5.3
    assert sum(losses[step] for step in range(91, 101)) / 10 < 2.9
    assert not ranks[1].messages("progress")
    rows = [line for line in ranks[0].lines if line[0].isdigit()]
    assert [float(row.split(",")[1]) for row in rows] == list(losses.values())


@pytest.mark.parametrize(
    ("arguments", "named"),
    [(["--heads", "5"], "heads"), (["--text", "/nowhere/text"], "/nowhere/text"), (["--batch", "0"], "--batch")],
)
def test_wrong_options_are_named(launcher, arguments, named):
    [rank] = launcher.gang(1, arguments)
    assert rank.wait() != 0
    assert any(named in line for line in rank.lines)
