"""Kernels and transfers by hand, and against published measurements of them."""

from dataclasses import replace

import pytest

from services.forecast.cost_model import Machine, ModelShape, TrainingLayout, machine_of
from services.forecast.cost_model.attention import backward_ratio, reached_share
from services.forecast.cost_model.efficiency import PRIOR
from services.forecast.cost_model.kernels import Kernels, Pass
from services.forecast.cost_model.known_models import model_named
from services.forecast.cost_model.layout import Recompute
from services.forecast.cost_model.links import Links, groups
from services.forecast.cost_model.step_time import per_micro_batch, step_time

A100, H100 = machine_of("A100-SXM4-80GB"), machine_of("H100-SXM5-80GB")

# arXiv:2407.08608 figure 5: TFLOP/s of causal attention forward on H100, heads of 128, by length of the sequence.
FLASH_2 = {512: 191, 1024: 260, 2048: 298, 4096: 319, 8192: 333, 16384: 335}
CUDNN_9 = {512: 315, 1024: 410, 2048: 484, 4096: 518, 8192: 529, 16384: 539}


@pytest.mark.parametrize(("generation", "measured"), [(2, FLASH_2), (3, CUDNN_9), (0, CUDNN_9)])
def test_attention_on_h100_is_as_fast_as_published(generation: int, measured: dict[int, float]) -> None:
    for sequence, teraflops in measured.items():
        share = reached_share(H100, generation, sequence, 128)
        assert share * H100.peak("bf16") / 1e12 == pytest.approx(teraflops, rel=0.09)


def test_older_kernels_smaller_heads_and_shorter_sequences_are_slower() -> None:
    assert reached_share(H100, 1, 4096, 128) < reached_share(H100, 2, 4096, 128) < reached_share(H100, 3, 4096, 128)
    # A100 has no third generation: the second serves.
    assert reached_share(A100, 3, 4096, 128) == reached_share(A100, 0, 4096, 128) == reached_share(A100, 2, 4096, 128)
    # 64 / 104 over 128 / 168.
    assert reached_share(A100, 2, 4096, 64) / reached_share(A100, 2, 4096, 128) == pytest.approx(0.8077, abs=1e-4)
    assert reached_share(A100, 2, 320, 128) == pytest.approx(0.33)


def test_attention_on_blackwell_waits_for_units_that_did_not_grow() -> None:
    b200, b300 = machine_of("B200"), machine_of("B300")
    # cuDNN 9.13: 1,613 / 1.3 TFLOP/s forward; FlashAttention-2: 379 of 2,250 with heads of 64.
    assert reached_share(b200, 0, 32768, 128) * b200.peak("bf16") / 1e12 == pytest.approx(1613 / 1.3, rel=0.03)
    assert reached_share(b200, 2, 16384, 64) * b200.peak("bf16") / 1e12 == pytest.approx(379, rel=0.03)
    # Clocks of a tile backward: 2,560 of products (5,120 on Hopper) and what Hopper's kernels spend beside theirs; with twice
    # the exponentials 512 less.
    beside = 5120 * (1 / (0.56 * 0.87) - 1)
    for machine, clocks in ((b200, 2560 + beside), (b300, 2560 + beside - 512)):
        backward = reached_share(machine, 0, 1e9, 128) * 2.5 / backward_ratio(machine, 0)
        assert backward == pytest.approx(2560 / clocks, rel=0.02)
    assert backward_ratio(b200, 2) == backward_ratio(H100, 0) == 2.5 / 0.87


def test_a_chip_that_came_years_later_multiplies_as_its_architecture_does() -> None:
    for later, first in (("H200", "H100-SXM5-80GB"), ("H20", "H100-SXM5-80GB"), ("A800-SXM4-80GB", "A100-SXM4-80GB")):
        found, known = machine_of(later), machine_of(first)
        assert (found.year, found.units) == (known.year, known.units)
        assert reached_share(found, 0, 4096, 128) == reached_share(known, 0, 4096, 128)
    # Games and workstations have no products of their own kind.
    assert machine_of("RTX 5090").units == 132


def test_fused_attention_by_hand() -> None:
    # Two halves of 2 x 2 x 4096^2 x 128 FLOPs per head, 32 heads, at 0.66 x 4096 / 4416 of 312 TFLOP/s.
    layout = TrainingLayout(sequence=4096, global_batch=1)
    free = replace(PRIOR, attention=1.0, gap_s=0.0)
    core = Kernels(A100, free, layout).attention(model_named("llama2-7b"))
    forward = 2 * 32 * 4096**2 * 128 / (312e12 * 0.66 * 4096 / 4416)
    assert core.forward == pytest.approx(forward)
    assert core.backward == pytest.approx(2.5 / 0.87 * forward)


def test_the_host_rules_small_layers_and_compiled_steps_have_none() -> None:
    shape = replace(model_named("llama2-7b"), hidden=256, heads=2, kv_heads=2, ffn=512)
    layout = TrainingLayout(sequence=64, global_batch=1)
    layer = Kernels(A100, PRIOR, layout).layer(shape, experts=False)
    # Four matrix products, fourteen small kernels, attention.
    assert layer.forward == pytest.approx(19 * PRIOR.dispatch_s)
    assert layer.backward == pytest.approx(1.5 * 19 * PRIOR.dispatch_s)
    tpu = machine_of("tpu-v6e")
    assert Kernels(tpu, PRIOR, layout).layer(shape, experts=False).forward < layer.forward / 2


def test_checkpoints_by_operator_repeat_half_of_the_products() -> None:
    layout = TrainingLayout(sequence=8192, global_batch=8, recompute=Recompute.PRODUCTS)
    shape = model_named("llama3-8b")
    kernels = Kernels(H100, PRIOR, layout)
    layer = kernels.layer(shape, experts=False)
    repeated = layer.recomputed(layout)
    full = layer.recomputed(replace(layout, recompute=Recompute.FULL))
    # Neither attention nor queries, values, the first of the gate and what leads out of it.
    assert 0 < repeated < full - layer.attention
    products = [
        kernels.product(8192, 6144, 4096) / 6,
        kernels.product(8192, 4096, 4096),
        kernels.product(8192, 28672, 4096) / 2,
    ]
    assert repeated > sum(products)
    assert step_time(shape, layout, H100, PRIOR).recompute_s == pytest.approx(8 * 32 * repeated)


def test_checkpoints_of_sharded_and_of_compiled_training_stop_before_the_last_product() -> None:
    shape = model_named("llama2-7b")
    whole = TrainingLayout(sequence=4096, global_batch=8, dp=8, zero=2, recompute=Recompute.FULL)
    sharded, half = replace(whole, zero=3), replace(whole, zero=3, recompute_share=0.5)
    down = Kernels(A100, PRIOR, sharded).matrix(4096, 4096, 11008).forward

    def again(machine: Machine, layout: TrainingLayout) -> float:
        layer = Kernels(machine, PRIOR, layout).layer(shape, experts=False)
        return (layer.forward * layout.recompute_share - layer.recomputed(layout)) / layout.recompute_share

    assert again(A100, whole) == 0
    assert again(A100, sharded) == again(A100, half) == pytest.approx(down)
    assert again(machine_of("tpu-v6e"), whole) > 0
    # Where the host sets the pace nothing is saved: as many kernels are started up to there.
    small = replace(shape, hidden=256, heads=2, kv_heads=2, ffn=512)
    layer = Kernels(A100, PRIOR, replace(sharded, sequence=64)).layer(small, experts=False)
    assert layer.recomputed(sharded) == layer.forward


def test_small_kernels_that_nothing_fuses_by_hand() -> None:
    shape = model_named("llama2-7b")
    fused = TrainingLayout(sequence=4096, global_batch=8)
    free = replace(PRIOR, elementwise=1.0, memory=1.0)

    def forward(model: ModelShape, layout: TrainingLayout) -> float:
        return Kernels(A100, free, layout).layer(model, experts=False).forward

    # 32 values per token and hidden size for the norms, 8 per query and key, 2 per inner value; 2 bytes each.
    values = 4096 * (32 * 4096 + 8 * 2 * 4096 + 2 * 11008)
    more = forward(shape, replace(fused, eager=True)) - forward(shape, fused)
    assert more == pytest.approx(2 * values / A100.memory_bytes_per_s)
    plain = model_named("megatron-18.4b")
    assert forward(plain, replace(fused, eager=True)) == forward(plain, fused)


def test_every_expert_on_the_chip_is_started() -> None:
    shape = replace(model_named("mixtral-8x7b"), hidden=256, heads=2, kv_heads=2, expert_ffn=512)
    layout = TrainingLayout(sequence=64, global_batch=4, dp=4, ep=4)
    layer = Kernels(A100, PRIOR, layout).layer(shape, experts=True)
    # As without experts, forty of the router, two products of each of two experts.
    assert layer.forward == pytest.approx((19 + 40 + 2 * 2) * PRIOR.dispatch_s)


def test_heads_that_are_normed_move_their_queries_and_keys_once_more() -> None:
    normed = model_named("qwen3-8b")
    layout = TrainingLayout(sequence=4096, global_batch=8)
    free = replace(PRIOR, elementwise=1.0, memory=1.0, gap_s=0.0)

    def layer(shape: ModelShape) -> Pass:
        return Kernels(A100, free, layout).layer(shape, experts=False)

    # Read and written in 16 bit, for 32 heads of queries and 8 of keys of 128.
    moved = 2 * 2 * 4096 * (32 + 8) * 128 / A100.memory_bytes_per_s
    with_norms, without = layer(normed), layer(replace(normed, head_norms=False))
    assert with_norms.forward - without.forward == pytest.approx(moved)
    assert with_norms.backward - without.backward == pytest.approx(1.5 * moved)


def test_steps_of_a_ring_are_as_long_as_a_part_of_the_sequence() -> None:
    shape = model_named("llama3-8b")
    whole, parts = (
        Kernels(H100, PRIOR, TrainingLayout(sequence=8192, global_batch=1, cp=cp)).attention(shape).forward
        for cp in (1, 4)
    )
    # A quarter of the scores, by kernels of 2,048 tokens: slower by 8,192 / 8,512 over 2,048 / 2,368; four of them start.
    slower = 8192 / 8512 * 2368 / 2048
    assert parts - 4 * PRIOR.gap_s == pytest.approx((whole - PRIOR.gap_s) / 4 * slower)


def test_experts_cast_what_no_kernel_before_them_casts() -> None:
    shape = model_named("mixtral-8x7b")
    layout = TrainingLayout(sequence=4096, global_batch=4, dp=4, ep=4, precision="fp8")
    apart, fused = (
        Kernels(H100, PRIOR, replace(layout, fused_experts=on)).layer(shape, experts=True).forward
        for on in (False, True)
    )
    # 4,096 tokens to two experts each: inputs of 4,096 and, after the activation, of 14,336 values, 2 of 4 bytes more.
    cast = 2 * 4096 * 2 * (4096 + 14336) / (H100.memory_bytes_per_s * PRIOR.memory)
    assert apart - fused == pytest.approx(cast)
    wide = replace(layout, precision="bf16")
    alike = {Kernels(H100, PRIOR, replace(wide, fused_experts=on)).layer(shape, experts=True) for on in (False, True)}
    assert len(alike) == 1


def test_what_an_8_bit_product_takes_is_cast_in_both_orders() -> None:
    kernels = Kernels(H100, PRIOR, TrainingLayout(sequence=4096, global_batch=1, precision="fp8"))
    rows, columns, depth = 4096.0, 12288.0, 4096.0
    found = kernels.matrix(rows, columns, depth)
    bare = [kernels.product(*sizes, cast=0.0) for sizes in ((rows, columns, depth), (rows, depth, columns))]
    per_byte = 1 / (H100.memory_bytes_per_s * PRIOR.memory)
    # The input: 2 bytes read and 1 + 1 written per value, half with the norm before; its gradient's kernel does all four.
    assert found.forward - bare[0] == pytest.approx(2 * rows * depth * per_byte)
    assert found.backward - found.summing - bare[1] == pytest.approx(4 * rows * columns * per_byte)
    assert found.summing == pytest.approx(kernels.product(depth, columns, rows, cast=0.0))
    # XLA casts with what comes before.
    compiled = Kernels(replace(H100, vendor="google"), PRIOR, TrainingLayout(4096, 1, precision="fp8"))
    assert compiled.matrix(rows, columns, depth).backward < found.backward


def test_sums_of_input_gradients_hide_behind_gradients_of_weights() -> None:
    shape = model_named("megatron-18.4b")
    layout = TrainingLayout(sequence=2048, global_batch=1, tp=8, recompute=Recompute.FULL)
    links = Links(A100, PRIOR)
    each = links.gather(2 * 2048 * shape.hidden, groups(layout)["tp"])

    def exposed(summing: float, changed: TrainingLayout) -> float:
        layer = Pass(1.0, 1.0, summing=summing)
        return per_micro_batch(shape, changed, links, PRIOR, layer, 0.0)["tp"] / each

    # Two all-reduces are four gathers' time: forward, again, and backward as far as it does not hide.
    assert exposed(0.0, layout) == pytest.approx(4 + 4 + 4)
    assert exposed(3 * each, layout) == pytest.approx(4 + 4 + 1)
    assert exposed(9 * each, layout) == pytest.approx(4 + 4)
    kept = replace(layout, recompute=Recompute.NONE, sequence_parallel=True)
    # Gathers of output gradients do not hide there; the rest is cut into chunks.
    assert exposed(9 * each, kept) == pytest.approx((4 + 2) * (1 - PRIOR.overlap_tensor))


def test_the_largest_product_runs_at_the_measured_share_of_its_precision() -> None:
    # Measured on H100: 794.5 of 989.4 TFLOP/s in bf16, 1402.6 of 1978.9 in fp8; on A100 nobody measured 8 bit.
    assert H100.reached("bf16") == pytest.approx(794.5e12)
    assert H100.reached("fp8") == pytest.approx(1402.6e12)
    assert A100.reached("fp8") == A100.reached("bf16") == pytest.approx(271.2e12)


def test_less_power_is_slower_by_the_cube_root() -> None:
    half = H100.with_power(350)
    assert half.peak("bf16") == pytest.approx(H100.peak("bf16") * 0.7937, rel=1e-4)
    assert H100.with_power(900) == H100
    layout = TrainingLayout(sequence=8192, global_batch=8, dp=8, zero=3)
    shape = model_named("llama3-8b")
    assert step_time(shape, layout, half, PRIOR).total_s > step_time(shape, layout, H100, PRIOR).total_s


@pytest.mark.parametrize(("zero", "gathers", "scatters"), [(1, 1, 1), (2, 1, 4), (3, 8, 4)])
def test_gradients_that_are_divided_are_scattered_in_every_micro_batch(zero: int, gathers: int, scatters: int) -> None:
    shape = model_named("llama2-7b")
    layout = TrainingLayout(sequence=4096, global_batch=32, dp=8, zero=zero)
    nothing_hides = replace(PRIOR, overlap_gradients=0.0, overlap_shards=0.0, collective_s=1e-30)
    found = step_time(shape, layout, A100, nothing_hides).exposed_s["dp"]
    each = shape.parameters * 7 / 8 / (A100.link_bytes_per_s * PRIOR.link)
    assert found == pytest.approx((2 * gathers + 4 * scatters) * each, rel=1e-3)


def test_a_loss_in_kernels_of_its_own_moves_more_of_each_logit_than_a_fused_one() -> None:
    shape, layout = model_named("llama3-8b"), TrainingLayout(8192, 8, tp=2)
    apart = Kernels(A100, PRIOR, layout).output(shape)
    fused = Kernels(A100, PRIOR, replace(layout, fused_loss=True)).output(shape)
    # 52 bytes per logit instead of 24, as they are counted: what norms move beyond the least says nothing of them.
    more = (52 - 24) * 8192 * 128256 / 2 / (A100.memory_bytes_per_s * PRIOR.memory)
    assert apart.forward - fused.forward == pytest.approx(more / 2)
    assert apart.backward - fused.backward == pytest.approx(more / 2)
    wasteful = replace(PRIOR, elementwise=2 * PRIOR.elementwise)
    assert Kernels(A100, wasteful, layout).output(shape) == apart
