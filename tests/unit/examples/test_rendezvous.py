"""Ranks of one run and epoch find each other; nobody else gets in."""

import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from launch import Launch, LaunchError, TerminatedError
from rendezvous import RendezvousError, meet

from tests.fixtures_embedded import held_port


@pytest.fixture
def port() -> Iterator[int]:
    # Held: connecting to an ephemeral port before anybody listens could end in a connection to oneself.
    with held_port() as held:
        yield held.getsockname()[1]


def _launch(rank, port, world_size=3, epoch=1):
    return Launch(rank, world_size, "127.0.0.1", port, "run-a", epoch, None, None)


def _meet(launch, configuration="c", timeout_s=60.0, stopping=lambda: False):
    return meet(launch, configuration, timeout_s, stopping)


class Tries:
    """Never asks to stop, and knows how often a rank has asked: before each attempt."""

    def __init__(self):
        self._asked = threading.Semaphore(0)

    def __call__(self):
        self._asked.release()
        return False

    def until(self, count):
        for _ in range(count):
            assert self._asked.acquire(timeout=60)


def test_ranks_meet_whoever_comes_first_and_peers_are_in_order(port):
    tries = {2: Tries(), 1: Tries()}
    with ThreadPoolExecutor(3) as pool:
        late = [pool.submit(_meet, _launch(rank, port), stopping=asked) for rank, asked in tries.items()]
        for asked in tries.values():
            asked.until(2)  # nobody was there
        root = pool.submit(_meet, _launch(0, port)).result()
        two, one = (future.result() for future in late)
    assert [peer.getpeername() for peer in root] == [one[0].getsockname(), two[0].getsockname()]
    for peer in [*root, *one, *two]:
        peer.close()


def test_a_single_rank_needs_no_network():
    assert _meet(_launch(0, 1, world_size=1)) == []


@pytest.mark.parametrize(
    ("change", "configuration", "reason"),
    [
        ({"epoch": 0}, "c", "epoch is 0 there and 1"),
        ({"run_id": "run-b"}, "c", "run_id"),
        ({"world_size": 4}, "c", "world_size"),
        ({}, "other", "configuration"),
    ],
)
def test_a_stranger_is_refused_and_the_gang_still_completes(port, change, configuration, reason):
    with ThreadPoolExecutor(3) as pool:
        root = pool.submit(_meet, _launch(0, port, world_size=2))
        with pytest.raises(RendezvousError, match=reason):
            _meet(replace(_launch(1, port, world_size=2), **change), configuration)
        friend = _meet(_launch(1, port, world_size=2))
        peers = root.result()
    for peer in [*friend, *peers]:
        peer.close()


def test_a_rank_outlives_the_rank_zero_of_an_older_epoch(port):
    old_stopped, worker_tries, root_tries = threading.Event(), Tries(), Tries()
    with ThreadPoolExecutor(3) as pool:
        old = pool.submit(_meet, _launch(0, port, 2, epoch=1), stopping=old_stopped.is_set)
        _connect(port).close()
        new_worker = pool.submit(_meet, _launch(1, port, 2, epoch=2), stopping=worker_tries)
        new_root = pool.submit(_meet, _launch(0, port, 2, epoch=2), stopping=root_tries)
        root_tries.until(1)  # the port is taken
        worker_tries.until(3)  # turned away
        old_stopped.set()
        with pytest.raises(TerminatedError):
            old.result()
        for peer in [*new_root.result(), *new_worker.result()]:
            peer.close()


def test_noise_on_the_port_does_no_harm(port):
    with ThreadPoolExecutor(2) as pool:
        root = pool.submit(_meet, _launch(0, port, 2))
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02[]", b"\x00\x00\x00\x04null"):
            with _connect(port) as stranger:
                stranger.sendall(noise)
        friend = _meet(_launch(1, port, 2))
        for peer in [*root.result(), *friend]:
            peer.close()


def test_an_incomplete_gang_gives_up(port):
    with pytest.raises(RendezvousError, match=r"ranks \[1, 2\]"):
        _meet(_launch(0, port), timeout_s=0.3)
    with pytest.raises(RendezvousError, match="rank 0"):
        _meet(_launch(1, port), timeout_s=0.3)


def test_waiting_ends_when_asked_to_stop(port):
    with pytest.raises(TerminatedError):
        _meet(_launch(0, port), stopping=lambda: True)


def test_the_environment_of_a_rank():
    launch = Launch.from_environment(
        {
            "RANK": "2",
            "WORLD_SIZE": "4",
            "MASTER_ADDR": "10.0.0.7",
            "MASTER_PORT": "1234",
            "MERIDIAN_RUN_ID": "r",
            "MERIDIAN_EPOCH": "3",
            "MERIDIAN_CHECKPOINT_DIR": "/c",
        }
    )
    assert (launch.rank, launch.world_size, launch.master_address, launch.master_port) == (2, 4, "10.0.0.7", 1234)
    assert (launch.run_id, launch.epoch, str(launch.checkpoint_dir), launch.restore_from) == ("r", 3, "/c", None)
    alone = Launch.from_environment({"MERIDIAN_RESTORE_FROM": ""})
    assert (alone.rank, alone.world_size, alone.restore_from) == (0, 1, None)


@pytest.mark.parametrize(
    ("variables", "named"),
    [({"RANK": "x"}, "RANK"), ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2"), ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0")],
)
def test_an_impossible_environment_is_named(variables, named):
    with pytest.raises(LaunchError, match=named):
        Launch.from_environment(variables)


def _connect(port):
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=30)
        except ConnectionRefusedError:
            time.sleep(0.02)
