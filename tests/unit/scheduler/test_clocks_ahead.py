"""Clocks of agents may be wrong: nothing that they report has happened later than it was heard of."""

from __future__ import annotations

from dataclasses import replace

from google.protobuf.message import Message

from meridian.contracts.run.v1 import run_pb2
from services.scheduler.core.state import Run, UnitKey
from services.scheduler.events import Batch, apply
from services.scheduler.steps_heard import StepsHeard
from services.scheduler.wire import timestamp
from tests.unit.scheduler.recorded_messages import envelope
from tests.unit.scheduler.world import World, a_fleet, task

KEY = UnitKey("job", 0)
DAY_S = 86_400.0


def placed() -> tuple[World, Run]:
    world = World(a_fleet({"a": 1}))
    world.submit("job", replace(task(accelerators=1), max_run_time_s=1000.0))
    world.cycle()
    return world, world.run("job")


def say(world: World, message: Message) -> None:
    draft = world.book.draft()
    apply(Batch(draft, world.now_s, world.rules, set()), [envelope(message)])
    world.merge(draft)


def of(run: Run, at_s: float) -> dict[str, object]:
    return {"run_id": run.run_id, "job_id": "job", "domain_id": "a", "at": timestamp(at_s)}


def test_a_start_that_is_dated_ahead_was_now() -> None:
    world, run = placed()
    world.now_s = 1100.0
    say(world, run_pb2.RunStarted(**of(run, DAY_S)))  # type: ignore[arg-type]
    assert world.run("job").started_at_s == 1100.0
    assert world.book.cluster.running[KEY].expected_end_s == 2100.0


def test_a_start_in_the_past_was_then() -> None:
    world, run = placed()
    world.now_s = 1100.0
    say(world, run_pb2.RunStarted(**of(run, 1090.0)))  # type: ignore[arg-type]
    assert world.run("job").started_at_s == 1090.0


def test_a_checkpoint_that_is_dated_ahead_keeps_what_had_run() -> None:
    world, run = placed()
    world.start(run)
    world.now_s = 1300.0
    say(world, run_pb2.RunCheckpointed(path="/ckpt", step=3, **of(run, DAY_S)))  # type: ignore[arg-type]
    assert world.book.units[KEY].kept_s == 300.0


def test_steps_that_are_dated_ahead_hide_no_later_ones() -> None:
    """Of a clock that stood a day ahead at first: then 8 steps in 4 s, and 82 of 100 are left."""
    world, run = placed()
    world.start(run)
    heard = StepsHeard()
    for at_s, heard_s, step in ((DAY_S, 1010.0, 8), (1012.0, 1012.0, 10), (1016.0, 1016.0, 18)):
        message = run_pb2.RunProgress(step=step, total_steps=100, **of(run, at_s))  # type: ignore[arg-type]
        heard.hear(world.book, [envelope(message)], heard_s)
    news = heard.news(world.book, 1016.0)
    assert [rate for _, _, rate in news.rates] == [2.0]
    assert [(done.step, done.at_s) for _, done in news.done] == [(18, 1016.0)]
