"""Policy files: what they mean, and that everything wrong in them is named with its line."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.scheduler.app import read_policy
from services.scheduler.boosted_priority import BoostedPriorityOrder
from services.scheduler.core import queue, scores
from services.scheduler.core.errors import PolicyError
from services.scheduler.core.policy import Policy, RestartRules, policy_from_json
from services.scheduler.core.running_unit import RunningUnit
from services.scheduler.core.stages import check
from services.scheduler.core.state import Demand, UnitKey
from services.scheduler.core.waiting_unit import OrderContext, PendingUnit, Shares
from services.scheduler.policy.differences import differences
from services.scheduler.policy.file import parse, shipped, shipped_names
from services.scheduler.policy.marked_yaml import read
from tests.unit.scheduler.world import World, a_fleet, gang, task

WHOLE = """\
name: night-shift
selection:
  order: [boosted_priority, fair_share, {least_attained: {threshold_s: 7200}}, age]
  discipline: easy
  reservations: {depth: 2, estimate: limit}
  preemption:
    - order: {margin_s: 30}
allocation:
  filters: [up, domain, security, accelerator, capacity]
  scores:
    price: 1
    pack: {weight: 1.5}
    health: 0
  domains:
    beijing: {scores: {pack: 3, health: 1}}
  one_accelerator_model_per_gang: false
interval_s: 60
queues:
  - {name: org, priority_boost: 5}
  - {name: team-a, parent: org, weight: 2}
  - {name: team-b, parent: org, weight: 1, priority_boost: -1.5}
restarts:
  backoff_s: 2
shown_nodes: 3
"""


def wrong(text: str) -> list[tuple[str, str]]:
    """Pointers and texts of everything that is wrong."""
    with pytest.raises(PolicyError) as caught:
        parse(text)
    assert caught.value.errors
    return [(item.pointer, item.detail) for item in caught.value.errors]


def test_every_part_of_a_file_reaches_the_policy() -> None:
    assert parse(WHOLE) == replace(
        Policy(),
        name="night-shift",
        order=("boosted_priority", "fair_share", "least_attained", "age"),
        discipline="easy",
        reservation_depth=2,
        estimate="limit",
        preemptions=("order",),
        filters=("up", "domain", "security", "accelerator", "capacity"),
        scores=(("price", 1.0), ("pack", 1.5), ("health", 0.0)),
        domain_node_scores=(("beijing", (("pack", 3.0), ("health", 1.0))),),
        one_accelerator_model_per_gang=False,
        interval_s=60.0,
        tenant_weights=(("team-a", 2.0), ("team-b", 1.0)),
        options=(
            ("least_attained", (("threshold_s", 7200),)),
            ("order", (("margin_s", 30),)),
            # team-a inherits the boost of org.
            ("boosted_priority", (("boosts", (("org", 5), ("team-a", 5), ("team-b", -1.5))),)),
        ),
        restarts=RestartRules(backoff_s=2.0),
        shown_nodes=3,
    )


def test_what_is_left_out_is_as_in_the_default() -> None:
    assert parse("name: balanced") == Policy()


def test_json_and_what_the_api_answers_are_policies_too() -> None:
    for policy in (Policy(), parse(WHOLE), *map(shipped, shipped_names())):
        body = policy.as_json()
        for text in (json.dumps(body), json.dumps(body, indent="\t"), json.dumps(body, indent=1, ensure_ascii=False)):
            assert parse(text) == policy
            assert parse(text).version == policy.version


def test_equal_content_is_one_version_however_numbers_are_written() -> None:
    texts = (
        "{scores: {price: 1}, restarts: {backoff_s: 3}, options: {least_attained: {threshold_s: 60}}, order: [least_attained]}",
        """{"scores": {"price": 1e0}, "restarts": {"backoff_s": 3.0}, "options": {"least_attained": {"threshold_s": 6.0e1}},
            "order": ["least_attained"]}""",
    )
    first, second = map(parse, texts)
    assert repr(first) == repr(second)
    assert first.version == second.version


# -- shipped policies --------------------------------------------------------------------------------------------------


def test_the_default_is_shipped_as_it_is() -> None:
    default = read_policy(None)
    assert default == shipped("balanced")
    assert replace(default, unlike_planner="", options=()) == Policy()


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_policy_is_sound_and_bears_its_name(name: str) -> None:
    policy = shipped(name)
    check(policy)
    assert policy.name == name
    # None of them gives up a filter that keeps work off nodes that must not have it.
    assert policy.filters == Policy().filters


@pytest.mark.parametrize("name", shipped_names())
def test_every_shipped_policy_decides(name: str) -> None:
    world = World(a_fleet({"a": 2, "b": 1}), policy=shipped(name))
    world.submit("gang", gang(2, accelerators=4))
    world.submit("task", task(accelerators=4))
    world.submit("more", task(accelerators=4))
    decisions = world.cycle()
    assert decisions.policy_version == shipped(name).version
    # 12 accelerators for 8 + 4 + 4: one of the tasks waits, or the gang.
    assert {item.key.job_id for item in decisions.placed} | {item.key.job_id for item in decisions.waiting} == {
        "gang",
        "task",
        "more",
    }
    assert len(decisions.waiting) == 1


def test_shipped_policies_differ_as_their_names_say() -> None:
    assert {"balanced", "fifo", "easy-backfill", "conservative-backfill", "fair-share", "energy", "cheapest"} <= set(
        shipped_names()
    )
    assert len({shipped(name).version for name in shipped_names()}) == len(shipped_names())
    assert (shipped("fifo").order, shipped("fifo").discipline) == (("age",), "strict")
    assert (shipped("easy-backfill").discipline, shipped("easy-backfill").estimate) == ("easy", "limit")
    assert shipped("conservative-backfill").discipline == "conservative"
    assert shipped("fair-share").order[0] == "fair_share"
    assert max(shipped("cheapest").scores, key=lambda item: item[1])[0] == "price"
    assert "spread" not in dict(shipped("energy").scores)


def test_a_file_may_extend_a_shipped_policy() -> None:
    text = "name: mine\nextends: least-attained\ntenant_weights: {a: 2}\nrestarts: {backoff_s: 9}"
    expected = replace(
        shipped("least-attained"), name="mine", tenant_weights=(("a", 2.0),), restarts=RestartRules(backoff_s=9.0)
    )
    assert parse(text) == expected
    # Options of a plugin that is no longer used do not come along.
    assert parse("extends: least-attained\norder: [age]").options == (("order", (("margin_s", 300),)),)
    assert wrong("extends: balancd") == [
        ("/extends", "line 1: extends: there is no shipped policy 'balancd'; did you mean 'balanced'?")
    ]


# -- what is wrong -----------------------------------------------------------------------------------------------------

# Five lists of nine aliases of the one before: 9**5 values.
MANY = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{name}: &{name} [{','.join([f'*{before}'] * 9)}]\n" for before, name in ("ab", "bc", "cd", "de")
)
CASES = {
    "unknown plugin": (
        "name: x\nselection:\n  order:\n    - age\n    - fare_share\n",
        "/selection/order/1",
        "line 5: selection.order[1]: there is no order 'fare_share'; did you mean 'fair_share'?",
    ),
    "unknown filter in a flat field": ("filters: [up,\n  zz]", "/filters/1", "line 2: filters[1]: there is no filter 'zz'; known"),
    "unknown score": ("scores:\n  nope: 1", "/scores/nope", "line 2: scores.nope: there is no score 'nope'; known are"),
    "unknown planner": ("planner: crystal-ball", "/planner", "line 1: planner: there is no planner 'crystal-ball'"),
    "limits beside a planner": (
        "name: x\nplanner: gavel\nselection: {limits: [quota]}\nqueues: [{name: org, max_running: 3}]",
        "/planner",
        "line 2: planner: planners read no limits, and this policy has quota",
    ),
    "unknown preemption": ("preemptions: [gently]", "/preemptions/0", "there is no preemption 'gently'; known are move, order, prior"),
    "unknown limit": ("limits: [sky]", "/limits/0", "line 1: limits[0]: there is no limit 'sky'"),
    "named twice": ("order: [age, age]", "/order/1", "'age' is named twice"),
    "unknown key": ("name: x\nselecton: {}", "/selecton", "line 2: selecton: unknown key; did you mean 'selection'?"),
    "unknown key inside": ("selection: {\n ordr: []}", "/selection/ordr", "line 2: selection.ordr: unknown key; did you mean"),
    "negative weight": ("scores:\n  price: 1\n  carbon: -0.5", "/scores/carbon", "line 3: scores.carbon: must be at least 0, not -0.5"),
    "NaN weight": ("scores:\n  price: .nan", "/scores/price", "line 2: scores.price: a finite number is wanted, not nan"),
    "infinite weight": ('{"scores": {"price": 1e999}}', "/scores/price", "a finite number is wanted, not inf"),
    "huge weight": (f"scores: {{price: {10**400}}}", "/scores/price", "must be at most 9.0072e+15, not 1000000"),
    "large weight": ("scores: {price: 1.0e+20}", "/scores/price", "line 1: scores.price: must be at most 9.0072e+15, not 1e+20"),
    "weight of text": ("scores: {price: cheap}", "/scores/price", "a number is wanted, not 'cheap'"),
    "weight of truth": ("scores: {price: yes}", "/scores/price", "a number is wanted, not True"),
    "no weight": ("scores: {price: {options: {}}}", "/scores/price", "line 1: scores.price: a weight is wanted"),
    "scores as a list": ("scores: [price]", "/scores", "line 1: scores: a mapping is wanted, not a list"),
    "names as a text": ("order: age", "/order", "line 1: order: a list of names (order) is wanted, not 'age'"),
    "discipline": ("discipline: lax", "/discipline", "one of greedy, strict, easy, conservative is wanted, not 'lax'"),
    "estimate": ("selection: {reservations: {estimate: 3}}", "/selection/reservations/estimate", "one of expected, high, limit is wanted"),
    "depth": ("reservation_depth: 1.5", "/reservation_depth", "a whole number of at least 0 is wanted, not 1.5"),
    "flag": ("one_accelerator_model_per_gang: 1", "/one_accelerator_model_per_gang", "true or false is wanted, not 1"),
    "interval": ("interval_s: -1", "/interval_s", "must be at least 0, not -1"),
    "name": ("name: 'a b'", "/name", "letters, digits"),
    "name as a number": ("name: 7", "/name", "a text is wanted, not 7"),
    "tenant weight of 0": ("tenant_weights: {lab: 0}", "/tenant_weights/lab", "must be above 0, not 0"),
    "restarts": ("restarts:\n  max_recoveries: 1.5", "/restarts/max_recoveries", "line 2: restarts.max_recoveries: a whole number"),
    "unknown restart rule": ("restarts: {backof_s: 1}", "/restarts/backof_s", "did you mean 'backoff_s'?"),
    "given twice in one mapping": ("name: a\nname: b", "", "line 2: 'name' is given twice, first in line 1"),
    "given in two ways": ("order: [age]\nselection:\n  order: [age]", "/selection/order", "given already as order in line 1"),
    "option of no plugin": ("options:\n  zz: {a: 1}", "/options/zz", "line 2: options.zz: the policy uses no plugin of this name"),
    "unknown option": (
        "selection:\n  order:\n    - least_attained:\n        thresh: 1",
        "/selection/order/0/least_attained/thresh",
        "line 4: selection.order[0].least_attained.thresh: unknown option; known are",
    ),
    "option out of range": (
        "order: [least_attained]\noptions:\n  least_attained:\n    threshold_s: -1",
        "/options/least_attained/threshold_s",
        "line 4: options.least_attained.threshold_s: must be at least 0, not -1",
    ),
    "option of a plugin that has none": ("order: [{age: {x: 1}}]", "/order/0/age/x", "unknown option; it has none"),
    "option given twice": (
        "order: [{least_attained: {threshold_s: 1}}]\noptions: {least_attained: {threshold_s: 2}}",
        "/options/least_attained/threshold_s",
        "given already as order[0].least_attained.threshold_s in line 1",
    ),
    "NaN in an option": ("order: [{least_attained: {threshold_s: .nan}}]", "/order/0/least_attained/threshold_s", "a finite number"),
    "part of an option": (
        "scores:\n  chebyshev:\n    weight: 1\n    options:\n      weights:\n        lab:\n          energy: -1",
        "/scores/chebyshev/options/weights/lab/energy",
        "line 7: scores.chebyshev.options.weights.lab.energy: must not be negative, not -1",
    ),
    "quota without queues": ("name: x\nlimits:\n  - quota", "/limits/0", "line 3: limits[0]: options.quota.queues: is missing"),
    "quota without quotas": (
        "name: x\nlimits: [quota]\nqueues:\n  - {name: a}",
        "/limits/0",
        "line 2: limits[0]: options.quota.queues: is missing: no queue has nominal, borrowing_limit",
    ),
    "domain score of a domain": (
        "allocation:\n  domains:\n    beijing:\n      scores: {price: 1}",
        "/allocation/domains/beijing/scores/price",
        "line 4: allocation.domains.beijing.scores.price: a domain orders its nodes by scores of nodes (",
    ),
    "domain score that is not in scores": (
        "scores: {pack: 1}\ndomain_node_scores: {b: {health: 1}}",
        "/domain_node_scores/b/health",
        "line 2: domain_node_scores.b.health: name it in scores too",
    ),
    "service levels that are no list": (
        "service_levels:\n  lab: {kind: average_wait, target: 60}",
        "/service_levels/lab",
        "line 2: service_levels.lab: a list of objectives is wanted, not {'kind': 'average_wait', 'target': 60}",
    ),
    "large quota": (
        "limits: [quota]\nqueues: [{name: org, nominal: {cpus: 1.0e+20}}]",
        "/queues/0/nominal/cpus",
        "line 2: queues[0].nominal.cpus: must be at most 9.0072e+15, not 1e+20",
    ),
    "empty": ("", "", "line 1: the document is empty"),
    "only a comment": ("# nothing", "", "line 1: the document is empty"),
    "a list": ("- a", "", "line 1: a mapping is wanted, not a list"),
    "no YAML": ("name: x\norder: [age", "", "line 2: this is not YAML"),
    "two documents": ("name: x\n---\nname: y", "", "line 2: this is not YAML: but found another document"),
    "no text": ("name: \x00", "", "line 1: this is not YAML: special characters are not allowed"),
    "another type": ("name: !!python/object/apply:os.getcwd []", "/name", "values of type"),
    "a cycle of aliases": ("scores: &a\n  price: *a", "", "nested deeper than 32 levels"),
    "too deep": ("name: " + "[" * 2000, "", "nested deeper than"),
    "too many values": (MANY, "", "more than 50000 values"),
    "a number to the base of 8": (
        "name: x\ninterval_s: 0600",
        "/interval_s",
        "line 2: interval_s: '0600' would be read as 384 (YAML 1.1); write a decimal number",
    ),
    "a number to the base of 60": ("restarts: {exclusion_s: 1:20}", "/restarts/exclusion_s", "'1:20' would be read as 80"),
    "too deep without an end": ("name: x\na: " + "[" * 50_000, "", "line 2: the document is nested deeper than 32 levels"),
    "too many values without an end": ("a:\n - [" + "1," * 60_000, "", "line 2: the document has more than 50000 values"),
    "half a character": ('{"name": "\\ud800"}', "/name", "half a character"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "pointer", "said"), CASES.values(), ids=CASES.keys())
def test_what_is_wrong_is_named_with_its_path_and_line(text: str, pointer: str, said: str) -> None:
    found = wrong(text)
    assert any(said in detail and (not pointer or at == pointer) for at, detail in found), found


def test_what_is_said_of_a_long_value_is_short() -> None:
    for text in ("name: " + "a" * 100_000, "scores: {price: " + "9" * 100_000 + "}", "a" * 1000 + "b" * 9000 + ": 1"):
        with pytest.raises(PolicyError) as caught:
            parse(text)
        assert len(caught.value.detail) < 5000
        assert all(len(error.pointer) + len(error.detail) < 5000 for error in caught.value.errors)
        assert "line 1: " in caught.value.detail


def test_everything_wrong_is_said_at_once_in_the_order_of_lines() -> None:
    found = wrong("name: 1\nselection:\n  order: [nope]\n  discipline: lax\nscores: {price: -1}\nmore: 1")
    assert [detail.split(":")[0] for _, detail in found] == ["line 1", "line 3", "line 4", "line 5", "line 6"]
    with pytest.raises(PolicyError) as caught:
        parse("name: 1\norder: [a]\nlimits: [b]\nmore: 1", "policies/mine.yaml")
    assert caught.value.detail.startswith("policies/mine.yaml: line 1: name: ")
    assert caught.value.detail.endswith("; and 1 more")


@given(st.text(max_size=200))
def test_no_text_does_more_than_a_policy_error(text: str) -> None:
    with contextlib.suppress(PolicyError):
        parse(text)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [*Policy().as_json(), "selection", "allocation", "queues", "extends"]


@given(st.dictionaries(st.sampled_from(FIELDS), json_values, max_size=4))
def test_no_value_of_a_field_does_more_than_a_policy_error(body: dict[str, Any]) -> None:
    policy = None
    with contextlib.suppress(PolicyError):
        policy = parse(json.dumps(body))
    if policy is not None:
        assert parse(json.dumps(policy.as_json())).version == policy.version


# -- queues ------------------------------------------------------------------------------------------------------------


TREE = """\
limits: [quota]
queues:
  - name: org
    nominal: {accelerators: 64}
  - name: team-a
    parent: org
    nominal: {accelerators: 16, cpus: 0.5}
    borrowing_limit: {accelerators: 8}
    weight: 2
    max_running: 10
"""


def test_queues_with_quotas_go_to_the_limit() -> None:
    policy = parse(TREE)
    specs = [dict(spec) for spec in policy.options_of("quota")["queues"]]
    assert [spec["name"] for spec in specs] == ["org", "team-a"]
    assert dict(specs[1]["nominal"]) == {"accelerators": 16, "cpus": 0.5}
    assert (specs[1]["parent"], specs[1]["weight"], specs[1]["max_running"]) == ("org", 2, 10)
    assert policy.tenant_weights == (("team-a", 2.0),)
    assert parse(json.dumps(policy.as_json())).version == policy.version


@pytest.mark.parametrize(
    ("old", "new", "pointer", "said"),
    [
        ("nominal: {accelerators: 64}", "parent: team-a", "/queues/0/parent", "line 4: queues[0].parent: queue 'org': parent makes a cycle"),
        ("parent: org", "parent: orc", "/queues/1/parent", "line 6: queues[1].parent: queue 'team-a': parent 'orc' does not exist"),
        ("parent: org", "parent: [org]", "/queues/1/parent", "line 6: queues[1].parent: a text is wanted, not ['org']"),
        ("name: team-a", "name: org", "/queues/1", "queue 'org' is given already in line 3"),
        ("name: team-a", "name: 7", "/queues/1/name", "line 5: queues[1].name: a text is wanted, not 7"),
        ("name: team-a", "title: x", "/queues/1", "the queue has no name"),
        ("parent: org", "weight: 1", "/queues/1", "line 9: queues[1]: 'weight' is given twice, first in line 6"),
        ("    parent: org\n", "", "/queues/1", "only one queue may be the root"),
        ("{accelerators: 16, cpus: 0.5}", "{accelerators: -1}", "/queues/1/nominal/accelerators", "line 7: queues[1].nominal.accelerators: must be at least 0, not -1"),
        ("{accelerators: 16, cpus: 0.5}", "{accelerators: .nan}", "/queues/1/nominal/accelerators", "a finite number is wanted, not nan"),
        ("{accelerators: 16, cpus: 0.5}", "16", "/queues/1/nominal", "amounts by resource are wanted, not 16"),
        ("{accelerators: 8}", "{running: 8}", "/queues/1/borrowing_limit/running", "use max_running"),
        ("weight: 2", "weight: 0", "/queues/1/weight", "line 9: queues[1].weight: must be above 0"),
        ("weight: 2", "weight: .nan", "/queues/1/weight", "a finite number is wanted, not nan"),
        ("max_running: 10", "max_running: -1", "/queues/1/max_running", "line 10: queues[1].max_running: a whole number"),
        ("max_running: 10", "max_pending: 10", "/queues/1/max_pending", "unknown key"),
        ("max_running: 10", "colour: red", "/queues/1/colour", "unknown key"),
        ("limits: [quota]", "limits: []", "/queues/0/nominal", "quotas have no effect: name quota in selection.limits"),
        ("weight: 2", "priority_boost: 1", "/queues/1/priority_boost", "name boosted_priority (in place of priority)"),
        ("limits: [quota]", "limits: [quota]\noptions: {quota: {queues: []}}", "/queues", "given already as options.quota.queues in line 2"),
        ("limits: [quota]", "limits: [quota]\ntenant_weights: {team-a: 1}", "/queues/1/weight", "given already as tenant_weights.team-a"),
    ],
)  # fmt: skip
def test_a_wrong_queue_is_named_with_its_line(old: str, new: str, pointer: str, said: str) -> None:
    assert TREE.count(old) == 1
    found = wrong(TREE.replace(old, new))
    assert any(said in detail and at == pointer for at, detail in found), found


def test_a_quota_in_a_file_holds_units_back() -> None:
    """team-a has 4 accelerators of its own and may borrow 2: of three tasks with 3 each, two fit into 6."""
    policy = parse(
        "limits: [quota]\nqueues:\n- {name: org, nominal: {accelerators: 8}}\n"
        "- {name: team-a, parent: org, nominal: {accelerators: 4}, borrowing_limit: {accelerators: 2}}\n"
        "options: {quota: {others: org}}"
    )
    world = World(a_fleet({"a": 4}), policy=policy)
    for number in range(3):
        world.submit(f"job-{number}", task(accelerators=3), "team-a")
    world.submit("other", task(accelerators=3), "somebody")
    decisions = world.cycle()
    assert sorted(item.key.job_id for item in decisions.placed) == ["job-0", "job-1", "other"]
    (waiting,) = decisions.waiting
    assert "quota: queue 'team-a'" in waiting.explanation.blocked


def test_queues_without_quotas_need_no_common_root() -> None:
    policy = parse("queues: [{name: a, weight: 3}, {name: b}, {name: c, parent: b, weight: 0.5}]")
    assert policy.tenant_weights == (("a", 3.0), ("c", 0.5))
    assert not policy.options
    assert wrong("queues: [{name: a, parent: b}, {name: b, parent: a}]")[0][0] == "/queues/0/parent"
    assert "a list of queues is wanted" in wrong("queues: {a: 1}")[0][1]


def test_a_boost_adds_to_the_priority_of_the_queue_or_else_the_tenant() -> None:
    policy = parse("order: [boosted_priority]\nqueues: [{name: a, priority_boost: 10}]")
    (plugin,) = queue.orders(policy.order)
    assert isinstance(plugin, BoostedPriorityOrder)
    plugin = plugin.configured(policy.options_of("boosted_priority"))
    context = OrderContext(Shares({}, 1, 1, {}))

    def unit(tenant: str, priority: int, name: str = "") -> PendingUnit:
        return PendingUnit(UnitKey(tenant, 0), tenant, priority, 0.0, Demand(1), queue=name)

    # By hand: -(priority + boost).
    units = [unit("a", 1), unit("b", 10), unit("b", 2, "a"), unit("a", 5, "b")]
    assert [plugin.key(item, context) for item in units] == [-11, -10, -12, -5]
    assert plugin.running_key(RunningUnit(unit("a", 1), (), 0.0), context) == -11


# -- differences and marks ---------------------------------------------------------------------------------------------


def test_differences_name_what_changed() -> None:
    after = parse("name: mine\nscores: {price: 2, rtt: 1}\norder: [age]")
    changes = {item["path"]: (item["before"], item["after"]) for item in differences(Policy(), after)}
    assert changes["name"] == ("balanced", "mine")
    assert changes["scores.price"] == (1.0, 2.0)
    assert changes["scores.carbon"] == (0.5, None)
    assert changes["order"] == (["priority", "fair_share", "age"], ["age"])
    assert "scores.rtt" not in changes
    assert differences(after, after) == []
    first, second = parse("scores: {price: 1, rtt: 1}"), parse("scores: {rtt: 1, price: 1}")
    assert differences(first, second) == [{"path": "scores", "before": ["price", "rtt"], "after": ["rtt", "price"]}]


def test_marks_count_from_one_and_pointers_are_escaped() -> None:
    found = read("a/b:\n  - x\n  -  {c~d: 1e3}\n").get("a/b")
    assert found is not None
    inner = found.value[1].get("c~d")
    assert (inner.value, inner.path, inner.pointer, inner.line, inner.column) == (
        1000.0, "a/b[1].c~d", "/a~1b/1/c~0d", 3, 12,
    )  # fmt: skip
    assert found.plain() == ["x", {"c~d": 1000.0}]


def test_the_names_of_scores_of_nodes_are_those_of_the_core() -> None:
    assert {name for name, plugin in scores.SCORES.items() if isinstance(plugin, scores.NodeScore)} >= {
        "pack",
        "health",
    }


@pytest.mark.parametrize("given", ["5", "often", "[1]", "true", ""])
def test_rules_about_idle_nodes_that_are_no_mapping_are_named_with_their_line(given: str) -> None:
    with pytest.raises(PolicyError, match="line 2: idle_nodes: a mapping is wanted"):
        parse(f"name: x\nidle_nodes: {given}\n")


def test_a_policy_that_decided_once_is_read_though_it_would_be_refused_now() -> None:
    before = parse("selection: {limits: [quota]}\nqueues: [{name: org, max_running: 3}]").as_json()
    policy = policy_from_json({**before, "planner": "gavel"})
    assert (policy.planner, policy.limits) == ("gavel", ("quota",))
    with pytest.raises(PolicyError, match="planners read no limits"):
        check(policy)
