"""The star sums in one order, and nobody waits for a rank that is gone."""

import socket
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from collective import Frame, Patience, PeerLostError, Star

PATIENT = Patience(60.0, 60.0, lambda: False)


def _tcp_pairs(count):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pairs = []
        for _ in range(count):
            outer = socket.create_connection(listener.getsockname())
            inner, _ = listener.accept()
            pairs.append((inner, outer))
        return pairs


def _tcp_star(world_size, patience=PATIENT):
    pairs = _tcp_pairs(world_size - 1)
    root = Star(0, [inner for inner, _ in pairs], patience)
    return [root, *(Star(rank, [outer], patience) for rank, (_, outer) in enumerate(pairs, start=1))]


def _frame(rank, values):
    frame = Frame(scalars=2, values=values)
    frame.scalars[:] = rank, 1.0
    frame.values[:] = np.random.default_rng(rank).normal(size=values)
    return frame


@pytest.mark.parametrize(("world_size", "values"), [(1, 5), (2, 0), (3, 7), (4, 600_001)])
def test_every_rank_gets_the_sum_in_the_order_of_ranks(world_size, values):
    frames = [_frame(rank, values) for rank in range(world_size)]
    expected = frames[0].values.copy()
    for frame in frames[1:]:
        expected += frame.values
    stars = _tcp_star(world_size)
    with ThreadPoolExecutor(world_size) as pool:
        list(pool.map(lambda star, frame: star.all_reduce(frame), stars, frames))
    for frame in frames:
        assert frame.values.tobytes() == expected.tobytes()
        assert list(frame.scalars) == [sum(range(world_size)), world_size]
    for star in stars:
        star.close()


def test_broadcast_hands_out_the_frame_of_rank_zero():
    frames = [_frame(rank, 1000) for rank in range(3)]
    expected = bytes(frames[0].block)
    stars = _tcp_star(3)
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda star, frame: star.broadcast(frame), stars, frames))
    assert all(bytes(frame.block) == expected for frame in frames)
    for star in stars:
        star.close()


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_lost_rank_is_an_error_on_every_other(lost):
    stars = _tcp_star(3)
    stars[lost].close()

    def outcome(rank):
        try:
            stars[rank].all_reduce(_frame(rank, 10))
        except PeerLostError:
            return "lost"
        finally:
            stars[rank].close()
        return "summed"

    others = [rank for rank in range(3) if rank != lost]
    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(outcome, others)) == ["lost", "lost"]


def test_a_silent_rank_is_given_up():
    root, silent = _tcp_star(2, Patience(0.3, 60.0, lambda: False))
    with pytest.raises(PeerLostError, match=r"0\.3 s"):
        root.all_reduce(_frame(0, 10))
    root.close()
    silent.close()


def test_a_rank_that_must_stop_waits_less():
    assert Patience(30.0, 2.0, lambda: False).limit_s() == 30.0
    assert Patience(30.0, 2.0, lambda: True).limit_s() == 2.0
