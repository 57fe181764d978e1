"""Real node processes and real ranks: how runs end, what is reported, what is left."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from agent.engines.base import (
    Checkpoint,
    FailureKind,
    LaunchRequest,
    NodeState,
    Progress,
    RankExited,
    RankPlacement,
    RunFailed,
    RunFinished,
    RunLimits,
    RunRefused,
    RunStarted,
    StopRequest,
)
from agent.node import proc
from tests.integration.agent.conftest import PATIENCE_S, Domain, MakeDomain, request_for

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
STOP = StopRequest("job-1.0.1", "job-1", 0, 1, grace_s=0.5)


def _alive_with(mark: str) -> list[int]:
    return proc.marked_processes(mark.encode())


async def _running(domain: Domain, run_id: str = "job-1.0.1") -> RunStarted:
    event = await domain.wait_for(lambda e: isinstance(e, RunStarted) and e.run_id == run_id)
    assert isinstance(event, RunStarted)
    return event


async def _until_log(domain: Domain, text: str, run_id: str = "job-1.0.1", rank: int = 0) -> None:
    path = domain.settings.log_path(run_id, rank)
    async with asyncio.timeout(PATIENCE_S):
        while not path.exists() or text not in path.read_text():
            await asyncio.sleep(0.02)


async def test_a_gang_of_three_ranks_on_two_nodes_finishes(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    program = """
import os, sys
names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MERIDIAN_NODE", "MERIDIAN_JOB_ID", "MERIDIAN_EPOCH", "OMP_NUM_THREADS", "MERIDIAN_ACCELERATORS", "COLOUR"]
print(" ".join(os.environ[name] for name in names))
print(os.getcwd() == os.environ["MERIDIAN_WORK_DIR"], file=sys.stderr)
"""
    request = request_for(program, nodes=("north/n1", "north/n1", "north/n2"), env={"COLOUR": "blue", "RANK": "9"})
    await domain.engine.launch(request)
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)
    started = await _running(domain)
    assert started.node_ids == ("north/n1", "north/n2")
    # Output and errors come by a pipe each: which is read first is open.
    assert sorted(domain.log("job-1.0.1", 0).splitlines()) == ["0 3 0 2 north/n1 job-1 1 1  blue", "True"]
    assert sorted(domain.log("job-1.0.1", 2).splitlines()) == ["2 3 0 1 north/n2 job-1 1 1  blue", "True"]
    exits = domain.of(RankExited, "job-1.0.1")
    assert [event.exit_code for event in exits if isinstance(event, RankExited)] == [0, 0, 0]
    assert domain.engine.list_runs() == ()


async def test_the_agents_secrets_do_not_reach_a_rank(make_domain: MakeDomain, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MERIDIAN_JOIN_TOKEN", "secret-of-the-agent")
    domain = await make_domain()
    await domain.engine.launch(request_for("import os; print(dict(os.environ)); print(os.listdir('/proc/self/fd'))"))
    await domain.end_of("job-1.0.1")
    assert "secret-of-the-agent" not in domain.log("job-1.0.1")
    assert domain.log("job-1.0.1").splitlines()[1] == "['0', '1', '2', '3']"  # 3 is the listing itself


async def test_the_first_failing_rank_stops_the_gang_and_is_named(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    program = """
import os, sys, time
if os.environ["RANK"] == "1":
    print("cannot allocate", file=sys.stderr)
    sys.exit(7)
time.sleep(600)
"""
    await domain.engine.launch(request_for(program, nodes=("north/n1", "north/n2", "north/n2")))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert (failed.kind, failed.rank, failed.node_id, failed.exit_code, failed.signal) == (
        FailureKind.PROGRAM,
        1,
        "north/n2",
        7,
        None,
    )
    assert failed.log_tail == "cannot allocate\n"
    assert _alive_with("MERIDIAN_RUN_ID=job-1.0.1") == []
    assert len(domain.of(RunFailed, "job-1.0.1")) == 1


async def test_a_signal_is_reported(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    await domain.engine.launch(request_for("import os; os.kill(os.getpid(), 11)"))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert (failed.kind, failed.exit_code, failed.signal) == (FailureKind.PROGRAM, None, signal.SIGSEGV)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"command": ("/no/such/program",)}, "the program '/no/such/program' cannot be started: No such file"),
        ({"working_dir": "/no/such/folder"}, "the working directory '/no/such/folder' cannot be entered: No such file"),
        ({"ranks": (RankPlacement(0, "north/n9"),)}, "north/n9"),
    ],
)
async def test_what_cannot_be_started_is_said(make_domain: MakeDomain, changes: dict[str, object], words: str) -> None:
    domain = await make_domain()
    await domain.engine.launch(request_for("pass", **changes))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.NOT_STARTABLE
    assert words in failed.reason


async def test_progress_and_checkpoints_are_reported(make_domain: MakeDomain, tmp_path: Path) -> None:
    domain = await make_domain()
    path = tmp_path / "c.npz"
    program = f"""
import json, time
open({str(path)!r}, "w").write("x" * 10)
print("hello")
for step in range(1, 301):
    print('@meridian ' + json.dumps({{"progress": {{"step": step, "total_steps": 300, "metrics": {{"loss": 1 / step}}}}}}), flush=True)
    if step % 100 == 0:
        print('@meridian ' + json.dumps({{"checkpoint": {{"step": step, "path": {str(path)!r}}}}}), flush=True)
    time.sleep(0.001)
print("@meridian nonsense")
"""
    began = time.monotonic()
    await domain.engine.launch(request_for(program))
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)
    took_s = time.monotonic() - began
    steps = [event.step for event in domain.of(Progress, "job-1.0.1") if isinstance(event, Progress)]
    assert steps == sorted(set(steps))
    assert steps[-1] == 300, "the newest progress is never lost at the end"
    assert len(steps) <= 10 * took_s + 2, "it is thinned out to 10 a second"
    checkpoints = [event for event in domain.of(Checkpoint, "job-1.0.1") if isinstance(event, Checkpoint)]
    assert [(event.step, event.size_bytes) for event in checkpoints] == [(100, 10), (200, 10), (300, 10)]
    assert domain.log("job-1.0.1") == "hello\n@meridian nonsense\n"
    assert domain.engine.malformed_count == 1
    assert isinstance(domain.events[-1], RunFinished)


async def test_the_time_limit_asks_a_run_to_end(make_domain: MakeDomain) -> None:
    domain = await make_domain(time_limit_grace_s=600)
    await domain.engine.launch(request_for(SLEEP, limits=RunLimits(max_run_time_s=0.5)))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert (failed.kind, failed.rank, failed.signal) == (FailureKind.TIME_LIMIT, 0, signal.SIGTERM)


async def test_the_time_limit_ends_a_run_that_does_not_listen(make_domain: MakeDomain) -> None:
    domain = await make_domain(time_limit_grace_s=0.3)
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('deaf', flush=True); time.sleep(600)"
    # Enough for the program to come so far, also where it stands still for some seconds.
    await domain.engine.launch(request_for(program, limits=RunLimits(max_run_time_s=8.0)))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert (failed.kind, failed.rank, failed.signal) == (FailureKind.TIME_LIMIT, 0, signal.SIGKILL)
    assert domain.log("job-1.0.1") == "deaf\n"


async def test_the_memory_limit_ends_a_run(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    program = "import time; data = bytearray(200_000_000); data[::4096] = b'x' * len(data[::4096]); time.sleep(600)"
    await domain.engine.launch(request_for(program, limits=RunLimits(memory_bytes=100_000_000)))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.OUT_OF_MEMORY
    assert "100000000 bytes" in failed.reason


async def test_a_stop_is_carried_out_and_reported_once(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    program = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(600)"
    await domain.engine.launch(request_for(program))
    await _until_log(domain, "up")
    await domain.engine.stop(STOP)
    await domain.engine.stop(STOP)
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.STOPPED
    await domain.engine.stop(STOP)
    assert len(domain.of(RunFailed, "job-1.0.1")) == 1
    assert _alive_with("MERIDIAN_RUN_ID=job-1.0.1") == []


async def test_what_a_rank_leaves_behind_is_ended_with_it(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    program = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}], start_new_session=True)
subprocess.Popen([sys.executable, "-S", "-c", {SLEEP!r}])
"""
    await domain.engine.launch(request_for(program))
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)
    assert _alive_with("MERIDIAN_RUN_ID=job-1.0.1") == []


async def test_the_log_is_capped(make_domain: MakeDomain) -> None:
    domain = await make_domain(log_bytes=1000)
    await domain.engine.launch(request_for("for i in range(10000): print('line', i)"))
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)
    text = domain.log("job-1.0.1")
    assert text.startswith("line 0\nline 1\n")
    assert text.endswith("[meridian: log truncated after 1000 bytes]\n")
    assert len(text) < 1100


async def test_an_order_twice_starts_one_run(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    request = request_for(SLEEP)
    await domain.engine.launch(request)
    await _running(domain)
    await domain.engine.launch(request)
    await domain.wait_for(lambda _: len(domain.of(RunStarted, "job-1.0.1")) == 2)
    await _until_log(domain, "up")
    assert len(_alive_with("MERIDIAN_RUN_ID=job-1.0.1")) == 1
    await domain.engine.stop(STOP)
    await domain.end_of("job-1.0.1")
    await domain.engine.launch(request)
    await domain.wait_for(lambda _: len(domain.of(RunFailed, "job-1.0.1")) == 2)
    assert domain.engine.list_runs() == ()


async def test_a_stale_epoch_is_refused(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    await domain.engine.launch(request_for("pass", run_id="job-1.0.5", epoch=5))
    assert isinstance(await domain.end_of("job-1.0.5"), RunFinished)
    await domain.engine.launch(request_for("pass", run_id="job-1.0.4", epoch=4))
    refused = await domain.wait_for(lambda e: isinstance(e, RunRefused))
    assert isinstance(refused, RunRefused)
    assert (refused.run_id, refused.highest_epoch) == ("job-1.0.4", 5)
    await domain.engine.launch(request_for("pass", run_id="job-1.0.5b", epoch=5))
    await domain.wait_for(lambda e: isinstance(e, RunRefused) and e.run_id == "job-1.0.5b")
    assert domain.of(RunStarted, "job-1.0.4") == []


async def test_a_stop_that_overtakes_its_start_holds(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    await domain.engine.stop(StopRequest("job-1.0.1", "job-1", 0, 1))
    stopped = await domain.end_of("job-1.0.1")
    assert isinstance(stopped, RunFailed)
    assert stopped.kind is FailureKind.STOPPED
    await domain.engine.launch(request_for("pass"))
    await domain.wait_for(lambda e: isinstance(e, RunRefused) and e.run_id == "job-1.0.1")


async def test_a_newer_epoch_ends_the_older_run_before_it_starts(make_domain: MakeDomain, tmp_path: Path) -> None:
    domain = await make_domain()
    lock = tmp_path / "only-one"
    program = f"""
import fcntl, signal, time
signal.signal(15, signal.SIG_IGN)
file = open({str(lock)!r}, "w")
fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
print("alone", flush=True)
time.sleep(600 if __import__("os").environ["MERIDIAN_EPOCH"] == "1" else 0)
"""
    await domain.engine.launch(request_for(program))
    await _until_log(domain, "alone")
    await domain.engine.launch(request_for(program, run_id="job-1.0.2", epoch=2))
    assert isinstance(await domain.end_of("job-1.0.2"), RunFinished)
    older = await domain.end_of("job-1.0.1")
    assert isinstance(older, RunFailed)
    assert older.kind is FailureKind.STOPPED


async def test_a_start_that_waits_for_an_older_run_can_be_stopped(make_domain: MakeDomain) -> None:
    domain = await make_domain(fence_silence_s=600.0)
    await domain.engine.launch(request_for(SLEEP))
    await _until_log(domain, "up")
    frozen = next(pid for pid in proc.all_pids() if _is_node(pid, "north/n1"))
    os.kill(frozen, signal.SIGSTOP)
    newer = request_for("pass", run_id="job-1.0.2", epoch=2, nodes=("north/n2",))
    await domain.engine.launch(newer)
    await domain.engine.stop(StopRequest("job-1.0.2", "job-1", 0, 2))
    assert [run.run_id for run in domain.engine.list_runs()] == ["job-1.0.1"], "the order does not wait for its end"
    stopped = await domain.end_of("job-1.0.2")
    assert isinstance(stopped, RunFailed)
    assert stopped.kind is FailureKind.STOPPED
    os.kill(frozen, signal.SIGCONT)
    await domain.end_of("job-1.0.1")
    await domain.engine.launch(request_for("pass", run_id="job-1.0.3", epoch=3, nodes=("north/n2",)))
    await domain.end_of("job-1.0.3")
    assert domain.of(RunStarted, "job-1.0.2") == []


async def test_a_killed_node_is_known_by_its_end_and_leaves_nothing(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    await domain.engine.launch(request_for(SLEEP, nodes=("north/n1", "north/n2", "north/n2")))
    await _until_log(domain, "up", rank=2)
    await domain.engine.launch(request_for(SLEEP, run_id="job-2.0.1", job_id="job-2"))
    await _running(domain, "job-2.0.1")
    node = next(pid for pid in proc.all_pids() if _is_node(pid, "north/n2"))
    before = domain.engine.nodes()[1].incarnation
    killed_at = time.monotonic()
    os.kill(node, signal.SIGKILL)
    async with asyncio.timeout(PATIENCE_S):
        while next(n for n in domain.engine.nodes() if n.node_id == "north/n2").state is not NodeState.EXITED:
            await asyncio.sleep(0.005)
    noticed_s = time.monotonic() - killed_at
    failed = await domain.end_of("job-1.0.1")
    print(
        f"node death noticed after {noticed_s * 1000:.0f} ms, run ended after {(time.monotonic() - killed_at) * 1000:.0f} ms"
    )
    assert isinstance(failed, RunFailed)
    assert (failed.kind, failed.node_id) == (FailureKind.NODE_LOST, "north/n2")
    assert _alive_with("MERIDIAN_RUN_ID=job-1.0.1") == []
    assert proc.session_members(node) == []
    assert [run.run_id for run in domain.engine.list_runs()] == ["job-2.0.1"], "runs on other nodes go on"
    async with asyncio.timeout(PATIENCE_S):
        while (status := domain.engine.nodes()[1]).state is not NodeState.RUNNING:
            await asyncio.sleep(0.02)
    assert status.node_id == "north/n2"
    assert status.incarnation > before
    await domain.engine.launch(request_for("pass", run_id="job-1.0.2", epoch=2, nodes=("north/n2",)))
    assert isinstance(await domain.end_of("job-1.0.2"), RunFinished)


async def test_killing_an_emulated_machine_kills_its_session(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    await domain.engine.launch(request_for(SLEEP))
    await _until_log(domain, "up")
    await domain.engine.kill_node("north/n1")
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.NODE_LOST


async def test_nothing_is_started_on_a_node_that_is_down(make_domain: MakeDomain) -> None:
    domain = await make_domain(restart_after_s=600)
    await domain.engine.kill_node("north/n1")
    async with asyncio.timeout(PATIENCE_S):
        while domain.engine.nodes()[0].state is not NodeState.EXITED:
            await asyncio.sleep(0.005)
    await domain.engine.launch(request_for("pass"))
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.NODE_LOST


async def test_a_frozen_node_is_fenced_when_its_run_must_end(make_domain: MakeDomain) -> None:
    domain = await make_domain(fence_silence_s=0.5)
    await domain.engine.launch(request_for(SLEEP))
    await _until_log(domain, "up")
    node = next(pid for pid in proc.all_pids() if _is_node(pid, "north/n1"))
    os.kill(node, signal.SIGSTOP)
    async with asyncio.timeout(PATIENCE_S):
        while domain.engine.nodes()[0].last_beat_age_s <= 0.5:
            await asyncio.sleep(0.02)
    await domain.engine.launch(request_for("pass", run_id="job-1.0.2", epoch=2, nodes=("north/n2",)))
    assert isinstance(await domain.end_of("job-1.0.2"), RunFinished)
    assert _alive_with("MERIDIAN_RUN_ID=job-1.0.1") == []


async def test_a_lost_lease_ends_all_runs_and_starts_none(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    await domain.engine.launch(request_for(SLEEP))
    await _until_log(domain, "up")
    await domain.engine.lease_lost()
    failed = await domain.end_of("job-1.0.1")
    assert isinstance(failed, RunFailed)
    assert failed.kind is FailureKind.LEASE_EXPIRED
    await domain.engine.launch(request_for("pass", run_id="job-1.0.2", epoch=2))
    refused = await domain.end_of("job-1.0.2")
    assert isinstance(refused, RunFailed)
    domain.engine.lease_regained()
    await domain.engine.launch(request_for("pass", run_id="job-1.0.3", epoch=3))
    assert isinstance(await domain.end_of("job-1.0.3"), RunFinished)


async def test_unacknowledged_events_come_again_after_a_restart(make_domain: MakeDomain) -> None:
    first = await make_domain()
    first.acknowledging = False
    await first.engine.launch(request_for("pass"))
    await first.end_of("job-1.0.1")
    await first.close()
    second = await make_domain()
    assert isinstance(await second.end_of("job-1.0.1"), RunFinished)
    assert [delivery.number for delivery in second.deliveries if delivery.number is not None] == [1, 2]
    assert second.book.incarnation > first.book.incarnation
    assert second.engine.nodes()[0].incarnation > first.book.nodes["north/n1"].incarnation


async def test_throughput_of_tiny_runs(make_domain: MakeDomain) -> None:
    domain = await make_domain()
    count = 200
    nodes = [pid for pid in proc.all_pids() if _is_node(pid, "north/n1") or _is_node(pid, "north/n2")]
    began_s = _processor_s(nodes)
    await asyncio.gather(*(domain.engine.launch(_tiny(number)) for number in range(count)))
    await domain.wait_for(
        lambda _: sum(isinstance(event, RunFinished) for event in domain.events) == count, 4 * PATIENCE_S
    )
    took_s = _processor_s(nodes) - began_s
    print(f"{count} tiny runs in {took_s:.2f} s of processor time: {count / took_s:.0f} runs per second of it")
    assert count / took_s > 20


def _processor_s(nodes: list[int]) -> float:
    """What this process, nodes and the ranks that they have waited for have used (proc(5), fields 14 to 17)."""
    ticks = sum(
        sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[11:15])) for pid in nodes
    )
    return time.process_time() + ticks / os.sysconf("SC_CLK_TCK")


def _tiny(number: int) -> LaunchRequest:
    node = f"north/n{number % 2 + 1}"
    return request_for("", run_id=f"tiny-{number}", job_id=f"tiny-{number}", nodes=(node,), command=("/bin/true",))


def _is_node(pid: int, node_id: str) -> bool:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return (
        b"agent.node" in arguments
        and f'"node": "{node_id}"'.encode() in b" ".join(arguments)
        and os.getpid() == _parent(pid)
    )


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b") ")[2].split()[1])


async def test_a_node_that_cannot_be_started_again_is_tried_until_it_can(
    make_domain: MakeDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = await make_domain(restart_after_s=0.05)
    start, tries = subprocess.Popen, 0

    def short_of_processes(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return start(*arguments, **more)

    monkeypatch.setattr(subprocess, "Popen", short_of_processes)
    await domain.engine.kill_node("north/n1")
    async with asyncio.timeout(PATIENCE_S):
        while tries < 3 or domain.engine.nodes()[0].state is not NodeState.RUNNING:
            await asyncio.sleep(0.005)
    await domain.engine.launch(request_for("print('here again')"))
    assert isinstance(await domain.end_of("job-1.0.1"), RunFinished)


async def test_an_engine_ends_while_a_node_cannot_be_started(
    make_domain: MakeDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = await make_domain(restart_after_s=0.05)
    tries = 0

    def short_of_processes(*_: Any, **__: Any) -> subprocess.Popen[bytes]:
        nonlocal tries
        tries += 1
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(subprocess, "Popen", short_of_processes)
    await domain.engine.kill_node("north/n1")
    async with asyncio.timeout(PATIENCE_S):
        while tries < 2:
            await asyncio.sleep(0.005)
        assert domain.engine.nodes()[0].state is NodeState.EXITED
        await domain.engine.kill_node("north/n1")
        await domain.close()


async def test_a_part_that_fails_ends_the_engine_with_its_error(
    make_domain: MakeDomain, monkeypatch: pytest.MonkeyPatch
) -> None:
    domain = await make_domain(restart_after_s=0.05)

    async def broken(node_id: str) -> None:
        raise LookupError(node_id)

    monkeypatch.setattr(domain.engine, "_start_node", broken)
    await domain.engine.kill_node("north/n1")
    with pytest.raises(LookupError, match="north/n1"):
        await domain.broken()
