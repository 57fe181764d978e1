"""What programs report on two levels: a shard's services follow their load, and its units end when their steps say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from services.scheduler.core.contracts.promises import Saved
from services.scheduler.core.measured import Cell, Done, Load, News
from services.scheduler.core.policy import Policy, policy_from_json
from services.scheduler.core.scaling import Scaling
from services.scheduler.core.state import Demand, JobKind, JobSpec, RunState, UnitKey, UnitState
from tests.unit.scheduler.apart_network import Network, Shard, a_network
from tests.unit.scheduler.world import task

RULES = Scaling(1, 4, target=10.0, down_after_s=0.0, cooldown_s=0.0)
WEB = JobSpec(JobKind.SERVICE, Demand(1, cpus=1.0, accelerators=1), replicas=1, command=("serve",), scaling=RULES)


def granted(network: Network) -> set[UnitKey]:
    return {key for domain in network.domains.values() for key in domain.grants}


def loaded(network: Network, shard: Shard, value: float) -> None:
    network.now_s += 1.0
    keys = [run.key for run in shard.book.runs.values() if run.state is RunState.ACTIVE]
    network.hear(shard, News(loads=tuple((key, Load(value, network.now_s)) for key in keys)))


def placed(network: Network) -> None:
    """Asking, answering, and asking for what came between."""
    for _ in range(4):
        network.exchange()


def test_replicas_come_with_grants_and_go_with_them() -> None:
    network = a_network(2)
    shard = network.shards["shard-0"]
    network.submit(shard, WEB)
    placed(network)
    web = [UnitKey("job-1", number) for number in range(4)]
    assert granted(network) == {web[0]}
    # By hand: 35 where 10 is wanted of each are 4 replicas.
    loaded(network, shard, 35.0)
    assert [shard.book.units[key].state for key in web[1:]] == [UnitState.QUEUED] * 3
    placed(network)
    network.check()
    assert granted(network) == set(web)
    # 4 replicas with 5 each: 2 are enough. The last ones stop, and hold their nodes until they have.
    loaded(network, shard, 5.0)
    assert [shard.book.units[key].state for key in web[2:]] == [UnitState.BLOCKED] * 2
    stopping = [run for run in shard.book.runs.values() if run.state is RunState.STOPPING]
    assert {run.key for run in stopping} == set(web[2:])
    placed(network)
    assert granted(network) == set(web)
    for run in stopping:
        network.finish(shard, run.run_id)
    placed(network)
    network.check()
    assert granted(network) == set(web[:2])


def test_a_replica_that_is_not_wanted_any_more_when_it_is_granted_is_given_back() -> None:
    network = a_network(1)
    (shard,) = network.shards.values()
    network.submit(shard, WEB)
    placed(network)
    loaded(network, shard, 20.0)
    network.step(shard)
    (pair,) = [pair for pair, queue in network.asked.items() if queue]
    network.deliver_request(pair)
    assert granted(network) == {UnitKey("job-1", 0), UnitKey("job-1", 1)}
    loaded(network, shard, 0.0)
    assert shard.book.units[UnitKey("job-1", 1)].state is UnitState.BLOCKED
    placed(network)
    network.check()
    assert granted(network) == {UnitKey("job-1", 0)}


def running_unit(policy: Policy) -> tuple[Network, Shard]:
    """One unit that runs in "north" since 1000 s, which nobody has told when it will end."""
    network = a_network(1)
    (shard,) = network.shards.values()
    shard.book.use(policy, network.now_s)
    shard.book.promises.begin(Saved({}), network.now_s)
    network.submit(shard, task(accelerators=1, domains=frozenset({"north"})))
    placed(network)
    assert granted(network) == {UnitKey("job-1", 0)}
    return network, shard


@pytest.mark.parametrize("discipline", ["greedy", "strict"])
def test_steps_say_when_a_unit_ends_though_no_policy_asks(discipline: str) -> None:
    """Predicted starts and share contracts rest on ends, on two levels too: 100 steps at 2 per second, 20 of them done."""
    network, shard = running_unit(Policy(discipline=discipline))
    key = UnitKey("job-1", 0)
    network.now_s = 1010.0
    network.hear(shard, News((("job-1", Cell("A100", 1), 2.0),), ((key, Done(20, 100, 1010.0)),)))
    assert shard.book.cluster.running[key].expected_end_s == pytest.approx(1050.0)
    # On one level a policy that looks at no ends leaves them as they are.
    alone = shard.book
    draft = alone.draft()
    draft.fleet = replace(alone.fleet, asks_domains=False)
    alone.merge(draft)
    alone.learn(News(done=((key, Done(80, 100, 1010.0)),)), 1010.0)
    assert alone.cluster.running[key].expected_end_s == pytest.approx(1050.0)


def test_share_contracts_count_with_the_end_that_steps_say() -> None:
    contract = policy_from_json(
        {
            "scores": {"share_deficit": 1.0},
            "options": {"share_deficit": {"shares": {"north": 1, "east": 1}, "window_s": 100.0}},
        }
    )
    network, shard = running_unit(contract)
    account, key = shard.book.promises.shares, UnitKey("job-1", 0)
    assert account is not None
    north = account.domain_ids.index("north")
    network.now_s = 1010.0
    network.hear(shard, News((("job-1", Cell("A100", 1), 2.0),), ((key, Done(20, 100, 1010.0)),)))
    shard.book.advance(1010.0)
    # By hand: one accelerator from 1000 on, until 1050 by its steps; the window ends at 1100.
    this, following = account.projections()
    assert (this[north], following[north]) == (pytest.approx(50.0), 0.0)
    # It makes half as many steps per second, so it ends at 1090, and later at 1170: 30 s of the next window are its own as well.
    network.hear(shard, News((("job-1", Cell("A100", 1), 1.0),), ((key, Done(20, 100, 1010.0)),)))
    assert account.projections()[0][north] == pytest.approx(90.0)
    network.hear(shard, News((("job-1", Cell("A100", 1), 0.5),), ((key, Done(20, 100, 1010.0)),)))
    this, following = account.projections()
    assert (this[north], following[north]) == (pytest.approx(100.0), pytest.approx(70.0))
