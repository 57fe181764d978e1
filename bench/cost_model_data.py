"""Published runs as rows of `meridian evaluate cost-model`; what the publications state beside the tables is added here.

vTrain (Bang et al. 2024): nodes of eight A100-80G with four 200 Gbit/s InfiniBand interfaces, Megatron-LM, fp16, full
recomputation. Mosaic: llm-foundry, FSDP, attention in Triton (`attn_impl` of its `submit_benchmarks.py`). Narayanan 2021
and Korthikanti 2022: DGX A100, interleaved where layers allow it. BLOOM: four 100 Gbit/s Omni-Path links per node of eight.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from pathlib import Path

Row = dict[str, str]


def table(folder: Path, name: str) -> Iterator[Row]:
    """The rows of a table of FIGURES."""
    with (folder / name).open(encoding="utf-8", newline="") as stream:
        yield from csv.DictReader(stream)


def vtrain(folder: Path, name: str) -> Iterator[Row]:
    """Bang et al. 2024, `data/` of VIA-Research/vTrain."""
    for row in table(folder, f"vtrain_ground_truth_{name}.csv"):
        size = float(row.get("Parameters (billion)") or 0)
        family = "vtrain-single" if name == "single" else ("vtrain-175b" if size > 100 else "vtrain-39b")
        yield {
            "group": family,
            "accelerator": "A100-SXM4-80GB",
            "n_accel": row["# GPUs"],
            "gbs": row["global batch"],
            "mbs": row["micro batch"],
            "hidden": row["hidden size"],
            "heads": row["attention heads"],
            "layers": row["# layers"],
            "seq": row["sequence length"],
            "tp": row["tensor parallelism"],
            "dp": row["data parallelism"],
            "pp": row["pipeline parallelism"],
            "vocab": "51200",
            "precision": "fp16",
            "recompute": "full",
            "attention": "unfused",
            "sp": "0",
            "zero": "0",
            "fabric_gbps": "12.5",
            "step_s": repr(float(row["iteration time (ms)"]) / 1e3),
        }


_MOSAIC_CHIPS = {"h100_80gb": "H100-SXM5-80GB", "a100_80gb": "A100-SXM4-80GB", "a100_40gb": "A100-SXM4-40GB"}


def mosaic(folder: Path) -> Iterator[Row]:
    """`scripts/train/benchmarking` of mosaicml/llm-foundry."""
    for row in table(folder, "mosaic_llmfoundry_throughput.csv"):
        tokens = float(row["GlobalBatchSize"]) * float(row["SeqLen (T)"])
        large = "Large" in row["section"]
        yield {
            "group": f"mosaic-{row['GPU'][:4]}" + ("-large" if large else ""),
            "accelerator": _MOSAIC_CHIPS[row["GPU"]],
            "model": f"mpt-{row['Model']}",
            "n_accel": row["# GPUs"],
            "seq": row["SeqLen (T)"],
            "tp": "1",
            "pp": "1",
            "gbs": row["GlobalBatchSize"],
            "mbs": row["MicroBatchSize"],
            "precision": row["Precision"],
            "recompute": "full" if row["Activation Checkpointing"] == "True" else "none",
            "attention": "triton",
            # `loss_fn` of its models is by default `fused_crossentropy`, the kernel of FlashAttention's repository.
            "fused_loss": "1",
            "zero": "3" if row["Sharding Strategy"] == "FULL_SHARD" else "2",
            # Gradients are summed in 16 bit (`submit_benchmarks.py`: mixed precision PURE).
            "gradients": "bf16+fp32",
            "step_s": repr(tokens / float(row["Throughput (T/s)"])),
        }


def literature(folder: Path) -> Iterator[Row]:
    """Figures of papers and of Megatron-LM's README; TFLOP/s become step times by the formula of the source."""
    for row in table(folder, "literature_llm_training.csv"):
        if not (row["layers"] and row["gbs"] and row["tp"] and row["pp"]):
            continue
        chip = "A100-SXM4-80GB" if row["accelerator"].startswith("A100-80G") else row["accelerator"]
        chip = "H100-SXM5-80GB" if chip.startswith("H100") else chip
        step = row["step_s"]
        layers, hidden, batch = float(row["layers"]), float(row["hidden"]), float(row["gbs"])
        vocabulary = _vocabulary(row)
        seq = float(row["seq"] or 2048)
        if not step and row["tflops_per_accel"]:
            # Narayanan 2021 eq. 3: with recomputation layers are passed four times and the output layer three times, without it all
            # three times (`num_floating_point_operations` of Megatron-LM).
            passes = 4 if row["recompute"] == "full" else 3
            per_layer = passes * 24 * (1 + seq / (6 * hidden))
            flops = batch * seq * layers * hidden**2 * (per_layer + 6 * vocabulary / (layers * hidden))
            step = repr(flops / (float(row["tflops_per_accel"]) * 1e12 * float(row["n_accel"])))
        old = chip.startswith("A100")
        family = "megatron-a100" if old else "megatron-h100"
        if "BLOOM" in row["model"]:
            family = "bloom"
        yield {
            "group": family,
            "accelerator": chip,
            **{
                name: row[name]
                for name in ("layers", "hidden", "heads", "tp", "pp", "dp", "cp", "mbs", "gbs", "n_accel")
            },
            "vocab": str(vocabulary),
            "fabric_gbps": "6.25" if family == "bloom" else "",
            "ffn": "32768" if "GLM" in row["model"] else "",
            "gated": "1" if "GLM" in row["model"] else "",
            "seq": row["seq"] or "2048",
            "precision": row["precision"],
            "recompute": row["recompute"] or ("full" if old else "none"),
            "attention": "unfused" if old else "fused",
            "zero": "1" if not old else "0",
            "vpp": _chunks(row),
            "step_s": step,
        }


def _vocabulary(row: Row) -> int:
    """What the source says: the README of Megatron-LM for its runs on H100, GLM-130B, BLOOM; Narayanan 2021 for the rest."""
    stated = {"BLOOM": 250880, "GLM": 150000}
    found = next((size for name, size in stated.items() if name in row["model"]), 51200)
    return 131072 if "H100 weak scaling" in row["source"] else found


def _chunks(row: Row) -> str:
    """Chunks per stage where the source interleaves: Korthikanti 2022 table 3 (175B, 530B: three); Narayanan 2021 section
    5.1 and the runs on H100, whose transfers between stages overlap (at least two, as few as divide the layers)."""
    if "2205.05198" in row["source"]:
        return "3" if row["model"] in {"GPT 175B", "GPT 530B"} else ""
    if ("2104.04473" in row["source"] or "H100 weak scaling" in row["source"]) and int(row["pp"]) > 1:
        each = int(row["layers"]) // int(row["pp"])
        return next((str(v) for v in (2, 3, 5, 7) if each % v == 0), "")
    return ""


_BRIDGE_MODELS = {
    "Qwen3_30B_a3B": "qwen3-30b-a3b",
    "Qwen3_235B_a22B": "qwen3-235b-a22b",
    "LLAMA3_70B": "llama3-70b",
    "LLAMA3_8B": "llama3-8b",
    "DeepSeekV3 (w/o MTP)": "deepseek-v3",
}
# Tables of these releases have one heading for each system, which stands where later ones name the model.
_BRIDGE_SYSTEM = "System: "


def bridge(folder: Path) -> Iterator[Row]:
    """`docs/performance-summary.md` of NVIDIA-NeMo/Megatron-Bridge: pre-training rows that name a model with a known shape."""
    for row in table(folder, "nemo_megatron_bridge_perf.csv"):
        rate = re.match(r"\d+(\.\d+)?", row["Tokens / sec / GPU"])
        if row["model"] not in _BRIDGE_MODELS or not row["phase"].startswith("Pre") or not rate:
            continue
        tokens = float(row["GBS"]) * float(row["Sequence Length"])
        yield {
            "group": "bridge-moe" if "Qwen" in row["model"] else "bridge-dense",
            "accelerator": row["System"].removeprefix("DGX-"),
            "model": _BRIDGE_MODELS[row["model"]],
            "n_accel": row["#-GPUs"],
            "seq": row["Sequence Length"],
            "tp": row["TP"],
            "pp": row["PP"],
            "cp": row["CP"],
            "vpp": row["VP"],
            "ep": row["EP"],
            "mbs": row["MBS"],
            "gbs": row["GBS"],
            "precision": row["Precision"].split()[0] if row["Precision"] else "bf16",
            "recompute": "",
            # `cross_entropy_loss_fusion` of its recipes.
            "fused_loss": "1",
            "step_s": repr(tokens / (float(rate[0]) * float(row["#-GPUs"]))),
            **(_experts(row) if "Qwen" in row["model"] else {}),
        }


def bridge_2025(folder: Path) -> Iterator[Row]:
    """The same of release 25.11, whose tables state full sharding (`FSDP`) and one precision, or a second in brackets.

    Gradients are summed in 16 bit (`grad_reduce_in_fp32 = False` of its performance scripts).
    """
    for row in table(folder, "nemo_megatron_bridge_perf.csv"):
        model = _BRIDGE_MODELS.get(row["Model"])
        if not row["model"].startswith(_BRIDGE_SYSTEM) or model is None or not row["Precision"]:
            continue
        rates = re.findall(r"[\d.]+", row["Tokens / sec / GPU"])
        precisions = re.findall(r"FP8-CS|FP8-MX|BF16", row["Precision"])
        tokens = float(row["GBS"]) * float(row["Sequence Length"])
        for rate, precision in zip(rates, precisions, strict=False):
            yield {
                "group": "bridge-25.11-dense" if model.startswith("llama") else "bridge-25.11-moe",
                "accelerator": row["model"].removeprefix(_BRIDGE_SYSTEM).removeprefix("DGX-"),
                "model": model,
                "n_accel": row["#-GPUs"],
                "seq": row["Sequence Length"],
                **{name.lower(): row[name] for name in ("TP", "PP", "CP", "EP", "MBS", "GBS")},
                "vpp": row["VP"],
                "precision": precision,
                "gradients": "bf16+fp32",
                "recompute": "",
                "fused_loss": "1",
                # All of Llama 3 8B on H100 is on one node, sharded there too.
                "zero": "3" if row["FSDP"] not in {"", "0"} else "",
                "step_s": repr(tokens / (float(rate) * float(row["#-GPUs"]))),
            }


def _experts(row: Row) -> Row:
    """How the recipes of Qwen3 run experts (Megatron-Bridge, `scripts/performance/configs/qwen` and pull requests).

    Nothing is recomputed (`set_qwen3_common_configs`). Tokens go by HybridEP, but by all-to-all in 235B, where it overlaps
    (`moe_a2a_overlap`, also in the first recipe of 30B on H100, two stages), and in the first of B200 (micro batch 1).
    From release 26.06 on Blackwell captures the whole step as one graph, overlaps the exchange and fuses the kernels of
    experts (#4249, #4606).
    """
    newer = row["release"] >= "26.06" and "H100" not in row["System"]
    large = "235B" in row["model"]
    plain = large or ("B200" in row["System"] and "GB200" not in row["System"] and row["MBS"] == "1")
    return {
        "recompute": "none",
        "dispatch_once": "0" if plain else "1",
        "expert_overlap": "1" if large or newer or row["PP"] == "2" else "0",
        "captured": "1" if newer else "0",
        "fused_experts": "1" if newer else "0",
    }


_DGXC_MODELS = {
    "Llama 3.1 8b": ("llama3-8b", "8192"),
    "Llama 3.1 70b": ("llama3-70b", "8192"),
    "Nemotron4 15b": ("nemotron4-15b", "4096"),
}


def dgxc(folder: Path) -> Iterator[Row]:
    """READMEs of NVIDIA/dgxc-benchmarking: pre-training tables that state the layout and the batch, by recipes of NeMo, whose
    models fuse the loss (`cross_entropy_loss_fusion`)."""
    for row in table(folder, "nvidia_dgxc_benchmarking.csv"):
        sizes = dict(re.findall(r"(TP|PP|CP|VP|MBS)=(\d+)", row["table"]))
        column = re.search(r"(\d+)x H100 GPUs \(GBS=(\d+)\)", row["column"])
        model = next((known for name, known in _DGXC_MODELS.items() if row["table"].startswith(name)), None)
        if "TP" not in sizes or "MBS" not in sizes or column is None or model is None or not row["step_s"]:
            continue
        yield {
            "group": "dgxc-fp8" if "FP8" in row["table"] else "dgxc-bf16",
            "accelerator": "H100-SXM5-80GB",
            "model": model[0],
            "n_accel": column[1],
            "seq": model[1],
            **{name.lower(): sizes.get(name, "") for name in ("TP", "PP", "CP", "MBS")},
            "vpp": sizes.get("VP", ""),
            "gbs": column[2],
            "precision": "fp8" if "FP8" in row["table"] else "bf16",
            "recompute": "",
            "fused_loss": "1",
            "step_s": row["step_s"],
        }


_TPU_MODELS = {
    "Llama3.1-70B": ("llama3-70b", 8192),
    "Llama3.1-8B": ("llama3-8b", 8192),
    "Gemma3-12B": ("gemma3-12b", 32768),
}


def tpu(folder: Path) -> Iterator[Row]:
    """AI-Hypercomputer/tpu-recipes: MaxText with full sharding; the batch is what step time and throughput imply."""
    for row in table(folder, "tpu_recipes.csv"):
        found = re.search(r"trillium/(.+)-MaxText/v6e-(\d+)$", row["recipe"])
        if found is None or found[1] not in _TPU_MODELS:
            continue
        chips = int(found[2])
        model, sequence = _TPU_MODELS[found[1]]
        each = round(float(row["step_s"]) * float(row["tokens_s_device"]) / sequence)
        yield {
            "group": "tpu-v6e",
            "accelerator": "tpu-v6e",
            "model": model,
            "n_accel": str(chips),
            "seq": str(sequence),
            "tp": "1",
            "pp": "1",
            "gbs": str(each * chips),
            "mbs": str(each),
            "precision": "bf16",
            "recompute": "full",
            "zero": "3",
            "step_s": row["step_s"],
        }


def torchtitan(folder: Path) -> Iterator[Row]:
    """`benchmarks/llama3_h100_202412_torchtitan.md` of pytorch/torchtitan: fully sharded, with peak memory."""
    for row in table(folder, "literature_llm_training.csv"):
        memory = re.search(r"memory ([\d.]+) GiB", row["note"])
        if "torchtitan" not in row["source"] or memory is None or not row["gbs"] or not row["tokens_s"]:
            continue
        sizes = dict(re.findall(r"(TP|PP|CP)(\d+)", row["note"]))
        yield {
            "group": "torchtitan",
            "accelerator": "H100-SXM5-96GB",
            "model": row["model"],
            "n_accel": row["n_accel"],
            "seq": row["seq"],
            "tp": sizes.get("TP", "1"),
            "pp": sizes.get("PP", "1"),
            "cp": sizes.get("CP", ""),
            "mbs": row["mbs"],
            "gbs": row["gbs"],
            "precision": row["precision"],
            # Selective checkpointing there is by operator.
            "recompute": "products" if "8B" in row["model"] else "full",
            "attention": "flash2",
            # Tables 1 and 3 (8B) have rows with and without torch.compile; table 4 (70B) is compiled.
            "eager": "1" if "8B" in row["model"] and "+compile" not in row["note"] else "",
            "power_w": "500",
            "memory_gbps": "2400",
            "zero": "3",
            "step_s": repr(float(row["gbs"]) * float(row["seq"]) / float(row["tokens_s"])),
            "mem_gib": memory[1],
        }


_PADDLE = {
    ("gpt3_6.7B-paddle", False): {"layers": "32", "hidden": "4096", "heads": "32", "vocab": "50304"},
    ("gpt3_6.7B-paddle", True): {"layers": "40", "hidden": "5120", "heads": "40", "vocab": "50304"},
    ("llama1_7B-paddle", False): {"model": "llama-7b"},
    ("llama1_7B-paddle", True): {"model": "llama-13b"},
}


def paddle(folder: Path) -> Iterator[Row]:
    """`training/nvidia/*-paddle` of FlagOpen/FlagPerf: one node, PaddlePaddle 2.5 with its first FlashAttention.

    Both tables hold two models; on chips of 80 GB only the larger (13B) recomputes. Memory is that of the fullest stage.
    """
    for row in table(folder, "flagperf_training.csv"):
        if not row["case"].endswith("-paddle") or "sharding" not in row["parallel"]:
            continue
        sizes = dict(
            re.findall(r"(per_device_bs|accumulate|tensor_parallel_degree|pipline_parallel_degree)=(\d+)", str(row))
        )
        recomputed, large = "recompute=True" in row["parallel"], "80G" in row["config"]
        tp, pp = int(sizes.get("tensor_parallel_degree", 1)), int(sizes.get("pipline_parallel_degree", 1))
        dp = 8 // (tp * pp)
        batch = int(sizes["per_device_bs"]) * int(sizes["accumulate"]) * dp
        stage = re.search(r"stage(\d)", row["parallel"])
        yield {
            "group": "paddle-a100",
            "accelerator": "A100-SXM4-80GB" if large else "A100-SXM4-40GB",
            **_PADDLE[row["case"], recomputed and large],
            "n_accel": "8",
            "seq": "2048",
            "tp": str(tp),
            "pp": str(pp),
            "mbs": sizes["per_device_bs"],
            "gbs": str(batch),
            "precision": "fp16",
            "recompute": "full" if recomputed else "none",
            "attention": "flash1",
            "eager": "1" if "use_fused_rms_norm=False" in row["parallel"] else "",
            "sp": "0",
            "zero": stage[1] if stage and dp > 1 else "0",
            "step_s": repr(batch / float(row["value"])),
            "mem_gib": str(max(float(each) for each in re.findall(r"(\d+\.\d+)", row["mem_used_over_cap_gib"]))),
        }


def all_rows(folder: Path) -> list[Row]:
    """Every adapter's rows."""
    found: list[Row] = []
    sources = (
        vtrain(folder, "single"),
        vtrain(folder, "multi"),
        mosaic(folder),
        literature(folder),
        bridge(folder),
        bridge_2025(folder),
        dgxc(folder),
        tpu(folder),
        torchtitan(folder),
        paddle(folder),
    )
    for source in sources:
        found.extend(source)
    return found
