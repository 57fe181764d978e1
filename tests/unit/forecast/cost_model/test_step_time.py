"""Step times: bubbles, links and collectives by hand; published iteration times; what must not change them."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meridian.errors import InvalidArgumentError
from services.forecast.cost_model import Efficiency, TrainingLayout, estimate, fitted, machine_of
from services.forecast.cost_model.efficiency import BOUNDS, NAMES, PRIOR, from_mapping, to_mapping
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Recompute, check
from services.forecast.cost_model.links import Group, Links, groups, sent_away
from services.forecast.cost_model.machine import UnknownChipError
from services.forecast.cost_model.search import HEADROOM, Work, best_layouts, divisors
from services.forecast.cost_model.step_time import step_time

A100 = machine_of("A100-SXM4-80GB")

# arXiv:2205.05198 tables 3 and 5: stages, chunks, batch, micro batch; seconds of an iteration with full, and with selective
# recomputation and sequence parallelism.
KORTHIKANTI = [
    ("megatron-22b", (1, 1, 4, 4), 1.42, 1.10),
    ("gpt3-175b", (8, 3, 64, 1), 18.13, 13.75),
    ("megatron-530b", (35, 3, 280, 1), 49.05, 37.83),
    ("megatron-1t", (64, 1, 512, 1), 94.42, 71.49),
]


@pytest.mark.parametrize(("name", "sizes", "full", "selective"), KORTHIKANTI)
def test_iteration_times_of_korthikanti(
    name: str, sizes: tuple[int, int, int, int], full: float, selective: float
) -> None:
    # These runs are among those that the parameters were fitted on; the others are in docs/cost-model.md.
    pp, vpp, gbs, mbs = sizes
    layout = TrainingLayout(
        sequence=2048,
        global_batch=gbs,
        micro_batch=mbs,
        tp=8,
        pp=pp,
        vpp=vpp,
        precision="fp16",
        recompute=Recompute.FULL,
        fused_attention=False,
    )
    shape = model_named(name)
    assert estimate(shape, layout, A100).step.total_s == pytest.approx(full, rel=0.15)
    both = replace(layout, recompute=Recompute.SELECTIVE, sequence_parallel=True)
    assert estimate(shape, both, A100).step.total_s == pytest.approx(selective, rel=0.15)


def test_bubble_is_that_of_narayanan() -> None:
    # Section 2.2 of arXiv:2104.04473: (p - 1) / m of the time of all micro batches, v times less interleaved. Without
    # transfers and with an output layer that weighs nothing the share is exact.
    shape = replace(model_named("megatron-18.4b"), vocabulary=1)
    near = replace(A100, node_size=64, link_bytes_per_s=1e18)
    free = replace(PRIOR, collective_s=1e-30)
    for vpp, bubble in [(1, 3 / 16), (2, 3 / 32)]:
        layout = TrainingLayout(sequence=2048, global_batch=16, pp=4, vpp=vpp)
        step = step_time(shape, layout, near, free)
        assert step.bubble_s / step.compute_s == pytest.approx(bubble, rel=0.01)


def test_parts_add_up() -> None:
    layout = TrainingLayout(
        sequence=4096, global_batch=64, tp=4, pp=4, vpp=2, dp=8, cp=2, zero=1, sequence_parallel=True
    )
    step = estimate(model_named("llama3-70b"), layout, A100).step
    parts = [step.compute_s, step.recompute_s, step.bubble_s, step.optimiser_s, step.data_s, step.straggling_s]
    assert step.total_s == pytest.approx(sum(parts) + sum(step.exposed_s.values()))
    assert all(part >= 0 for part in (*parts, *step.exposed_s.values()))
    assert step.exposed_s["ep"] == 0


def test_rings_use_the_interfaces_of_their_members() -> None:
    plain = replace(PRIOR, link=0.5, fabric=0.5, collective_s=1e-30)
    links = Links(A100, plain)
    assert links.rate(Group(8, 1)) == pytest.approx(150e9)
    # Sixteen neighbours: eight interfaces of 25 GB/s per node; one member per node: one interface.
    assert links.rate(Group(16, 1)) == pytest.approx(100e9)
    assert links.rate(Group(16, 8)) == pytest.approx(12.5e9)
    assert links.gather(8e9, Group(8, 1)) == pytest.approx(7e9 / 150e9)
    assert links.gather(8e9, Group(1, 1)) == 0
    # Two nodes, one copy of each token: half of the tokens leave the node.
    assert links.exchange(1e9, Group(16, 1), 1) == pytest.approx(0.5e9 / 12.5e9)
    # Eight copies: almost every token leaves, but once.
    assert links.exchange(1e9, Group(16, 1), 8) == pytest.approx((1 - 0.5**8) / 8 * 1e9 / 12.5e9)


def test_groups_are_placed_tensor_first() -> None:
    found = groups(TrainingLayout(sequence=8192, global_batch=64, tp=4, cp=2, dp=8, pp=2))
    assert (found["tp"], found["cp"], found["dp"], found["pp"]) == (
        Group(4, 1),
        Group(2, 4),
        Group(16, 4),
        Group(2, 64),
    )


@given(st.sampled_from(NAMES), st.floats(0.0, 1.0))
def test_no_parameter_within_its_bounds_breaks_the_model(name: str, position: float) -> None:
    low, high = BOUNDS[name]
    moved = from_mapping(to_mapping(PRIOR) | {name: low + position * (high - low)})
    layout = TrainingLayout(sequence=4096, global_batch=64, tp=4, pp=4, dp=8, zero=1, sequence_parallel=True)
    step = step_time(model_named("llama3-70b"), layout, A100, moved)
    assert 1 < step.total_s < 1000


@given(st.sampled_from([2, 3, 5, 8]))
def test_more_batches_take_longer_and_better_links_do_not(times: int) -> None:
    shape = model_named("llama3-8b")
    layout = TrainingLayout(sequence=4096, global_batch=32, dp=32, zero=3)
    step = estimate(shape, layout, A100).step.total_s
    assert estimate(shape, replace(layout, global_batch=32 * times), A100).step.total_s > step
    assert estimate(shape, layout, A100.with_fabric(25e9 * times)).step.total_s <= step


def test_parameters_out_of_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="matmul"):
        from_mapping(to_mapping(PRIOR) | {"matmul": 1.2})
    assert isinstance(fitted(), Efficiency)


def test_a_step_that_waits_for_the_host_does_not_wait_for_the_chip() -> None:
    shape = model_named("llama2-7b")
    large = TrainingLayout(sequence=4096, global_batch=64, dp=8, zero=1)
    small, host = replace(shape, hidden=256, heads=2, kv_heads=2, ffn=512, vocabulary=512), replace(large, sequence=64)
    slower = replace(PRIOR, matmul=PRIOR.matmul / 1.5, attention=PRIOR.attention / 1.5, memory=PRIOR.memory / 1.5)

    def of_chip(at: Efficiency) -> float:
        return step_time(shape, large, A100, at).total_s

    def of_host(at: Efficiency) -> float:
        return step_time(small, host, A100, at).total_s

    assert of_chip(slower) == pytest.approx(1.5 * of_chip(PRIOR), rel=0.02)
    assert of_host(slower) == pytest.approx(of_host(PRIOR), rel=0.02)
    # A step that is one captured graph waits for no host.
    assert step_time(small, replace(host, captured=True), A100, PRIOR).total_s < 0.5 * of_host(PRIOR)
    assert step_time(shape, replace(large, captured=True), A100, PRIOR).total_s == of_chip(PRIOR)


EXPERTS = TrainingLayout(sequence=4096, global_batch=1024, dp=16, ep=16, zero=1)


def test_what_hiding_the_exchange_with_experts_brings() -> None:
    # Megatron-Bridge #5094: Qwen3 30B-A3B on 16 H100 by HybridEP, 24.714 s, and 20.992 s with the exchange overlapped. A part
    # of each layer was a captured graph there, so the times lie between those without and with a graph of the whole step.
    shape, h100 = model_named("qwen3-30b-a3b"), machine_of("H100-SXM5-80GB")

    def seconds(*, captured: bool, overlap: bool) -> float:
        layout = replace(EXPERTS, captured=captured, expert_overlap=overlap)
        return step_time(shape, layout, h100, fitted()).total_s

    for overlap, measured in ((False, 24.714), (True, 20.992)):
        assert seconds(captured=True, overlap=overlap) < measured < seconds(captured=False, overlap=overlap)


def test_the_exchange_hides_behind_computation_and_no_more() -> None:
    shape, h100 = model_named("qwen3-30b-a3b"), machine_of("H100-SXM5-80GB")
    plain = step_time(shape, EXPERTS, h100, PRIOR)
    hidden = step_time(shape, replace(EXPERTS, expert_overlap=True), h100, PRIOR)
    assert hidden.exposed_s["ep"] == pytest.approx((1 - PRIOR.overlap_gradients) * plain.exposed_s["ep"])
    slow = h100.with_fabric(1e9)
    plain, hidden = (step_time(shape, replace(EXPERTS, expert_overlap=on), slow, PRIOR) for on in (False, True))
    assert plain.exposed_s["ep"] - hidden.exposed_s["ep"] <= PRIOR.overlap_gradients * plain.compute_s
    assert hidden.exposed_s["ep"] > (1 - PRIOR.overlap_gradients) * plain.exposed_s["ep"]


def test_a_token_goes_once_to_each_place_or_to_each_expert() -> None:
    # Two places, two experts: with one half both are on one place. Once: 1/2 (at home: 1/4 none, 3/4 to the other place).
    assert sent_away(2, 2, once=True) == pytest.approx(1 - 0.5**2)
    assert sent_away(2, 2, once=False) == pytest.approx(1.0)
    assert sent_away(8, 1, once=True) == sent_away(8, 1, once=False) == pytest.approx(7 / 8)
    assert sent_away(1, 8, once=True) == 0
    links = Links(A100, replace(PRIOR, link=1.0, fabric=1.0, collective_s=0.0))
    # Eight members of a node: 7 (1 - (7/8)^8) of eight copies leave, against 7.
    assert links.exchange(8e9, Group(8, 1), 8) == pytest.approx(7 * (1 - (7 / 8) ** 8) * 1e9 / A100.link_bytes_per_s)
    assert links.exchange(8e9, Group(8, 1), 8, once=False) == pytest.approx(7e9 / A100.link_bytes_per_s)
    assert links.exchange(8e9, Group(16, 1), 8, once=False) == pytest.approx(4e9 / A100.fabric_bytes_per_s)


def test_a_chip_beside_another_processor_reaches_what_its_like_was_measured_to_reach() -> None:
    alone, beside = machine_of("B300"), machine_of("GB300")
    assert (beside.reached_of_peak, beside.reached_of_peak_8_bit) == (
        alone.reached_of_peak,
        alone.reached_of_peak_8_bit,
    )
    assert "0.79, as measured on the same silicon" in " ".join(beside.assumptions)
    # Who was measured keeps its own.
    assert not machine_of("GB200").assumptions
    assert machine_of("GB200").reached_of_peak != machine_of("B200").reached_of_peak


def test_search_finds_what_fits_best_first() -> None:
    shape = model_named("llama2-70b")
    found = best_layouts(shape, Work(4096, 256), A100, 64, count=8)
    times = [item.step.total_s for _, item in found.best]
    assert times == sorted(times)
    assert len(found.best) == 8
    assert found.fitting <= found.possible
    # Chunks by which the layers can be divided are all tried (80 layers on 4 stages: 5, 10 and 20 too); one is shown.
    sizes = [(layout.tp, layout.pp, layout.micro_batch, layout.zero) for layout, _ in found.best]
    assert len(set(sizes)) == 8
    assert {layout.vpp for layout, _ in found.best} - {1, 2, 4, 8}
    for layout, item in found.best:
        assert layout.accelerators == 64
        assert item.memory.total <= HEADROOM * A100.memory_bytes


def test_search_finds_the_layout_of_a_published_run() -> None:
    """Llama 3.1 405B on 16,384 H100 (arXiv:2407.21783, table 4): TP 8, CP 1, PP 16, DP 128, interleaved, 41 % of the peak.

    Its 126 layers fill 16 stages, and chunks of them, only with embedding and output layer beside them (section 3.3.2).
    """
    h100 = machine_of("H100-SXM5-80GB")
    layout, item = best_layouts(model_named("llama3.1-405b"), Work(8192, 2048), h100, 16_384, count=1).best[0]
    assert (layout.tp, layout.cp, layout.pp, layout.dp) == (8, 1, 16, 128)
    assert layout.vpp > 1
    assert item.utilisation == pytest.approx(0.41, rel=0.1)


def test_the_stages_of_deepseek_v3_are_possible() -> None:
    # 16 stages (arXiv:2412.19437, section 3.2): 61 layers, one that predicts further tokens, embedding and output layer.
    shape = model_named("deepseek-v3")
    check(shape, TrainingLayout(sequence=4096, global_batch=15_360, pp=16, dp=128, ep=64))
    with pytest.raises(InvalidArgumentError, match="pp: 61 layers"):
        check(shape, TrainingLayout(sequence=4096, global_batch=15_360, pp=128, dp=128))


def test_search_tries_no_tensor_group_that_key_value_heads_cannot_fill() -> None:
    # Phi-4: 40 heads, 10 of keys and values (arXiv:2412.08905): over 8 chips neither is whole.
    found = best_layouts(model_named("phi-4"), Work(4096, 64), A100, 8, count=100)
    assert {layout.tp for layout, _ in found.best} == {1, 2}


def test_search_takes_sequences_that_do_not_halve() -> None:
    even, odd = (best_layouts(model_named("llama2-7b"), Work(length, 64), A100, 8) for length in (2048, 2047))
    assert odd.possible == even.possible
    # Parts of a ring must be equal.
    long = best_layouts(model_named("llama2-7b"), Work(32_767, 8), A100, 8)
    assert long.best
    assert {layout.cp for layout, _ in long.best} == {1}


def test_divisors() -> None:
    for number in (1, 2, 36, 49, 97, 5040):
        assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]


def test_search_says_when_nothing_fits_or_divides() -> None:
    assert best_layouts(model_named("megatron-1t"), Work(2048, 64), A100, 8).best == ()
    with pytest.raises(InvalidArgumentError, match="batch of 7"):
        best_layouts(model_named("llama2-7b"), Work(2048, 7), A100, 37)


def test_chips_without_a_variant_are_assumed_aloud_and_unknown_ones_refused() -> None:
    assert machine_of("H100").chip == "h100-sxm5-80gb"
    assert "h100-sxm5-80gb assumed" in machine_of("H100").assumptions[0]
    assert machine_of("Ascend 910B3").peak("bf16") == 313e12
    with pytest.raises(UnknownChipError, match="abacus"):
        machine_of("abacus")


def test_a_chip_stands_in_the_node_of_its_own_kind() -> None:
    """Pods of TPUs and nodes of Ascend and of Trainium by the vendors' documentation; a kind that no topology names has none."""
    pods = {
        "tpu-v2": 256,
        "tpu-v3": 1024,
        "tpu-v4": 4096,
        "tpu-v5e": 256,
        "tpu-v5p": 8960,
        "tpu-v6e": 256,
        "tpu-v7": 9216,
    }
    assert {name: machine_of(name).node_size for name in pods} == pods
    # 6.4 Tbit/s of network for the 256 chips of a pod of v5e; 800 Gbit/s for 16 Trainium.
    assert machine_of("tpu-v5e").fabric_bytes_per_s == pytest.approx(6.4e12 / 8 / 256)
    assert machine_of("Trainium").node_size == 16
    assert machine_of("Trainium").fabric_bytes_per_s == pytest.approx(800e9 / 8 / 16)
    # All bins of the 910B stand in the Atlas 800T A2, not in the Atlas 800 of the first 910.
    assert {machine_of(f"Ascend 910B{n}").fabric_bytes_per_s for n in (1, 2, 3, 4)} == {25e9}
    assert machine_of("Ascend 910A").fabric_bytes_per_s == 12.5e9
    assert any("assumed" in note for note in machine_of("Ascend 310P").assumptions)
    # Memory makes no other node; the cards of a node with PCI Express are joined by NVLink in pairs at most.
    assert machine_of("h20-141gb").fabric_bytes_per_s == machine_of("h20").fabric_bytes_per_s
    card = machine_of("a100-pcie-80gb")
    assert card.link_bytes_per_s < 31.5e9 < machine_of("a100-sxm4-80gb").link_bytes_per_s
    assert any("pairs of cards" in note for note in card.assumptions)
    with pytest.raises(UnknownChipError, match="tpu-v5e, tpu-v5p"):
        machine_of("TPU v5")


def test_a_precision_without_a_peak_falls_back() -> None:
    assert A100.peak("fp8") == A100.peak("bf16") == 312e12
    shape, layout = model_named("llama3.2-1b"), TrainingLayout(sequence=2048, global_batch=8, precision="fp8")
    assert any("no stated peak for fp8: that for bf16" in note for note in estimate(shape, layout, A100).assumptions)
    assert not estimate(shape, replace(layout, precision="bf16"), A100).assumptions
