"""Published runs that were read in last, in no fit: tables of FIGURES that nothing read before.

Protocol, fixed before any error was seen. A row is taken where the table, or a file of the same source, states model, chips, layout,
batch and time. What a row leaves open is what the source's script or text says for all of its rows. A row that contradicts itself
(chips that are not tp x pp x dp, a batch that is not micro batch x accumulation x dp) or that needs what the model does not
describe (offload to the host, expert parallelism that is not stated) is left aside, as are rows that other adapters read.

- BigScience (`experiments/*.md` and the scripts beside them): Jean Zay, nodes of four V100 SXM2 with four 100 Gbit/s Omni-Path links;
  fp16, unfused attention, all layers recomputed unless said. Its authors say that one and the same run varies by up to 40 %.
- MLPerf Training 3.0, GPT-3 175B in 8 bit on H100 (`megatron_gpt_config.yaml`: selective recomputation, gradients summed in 16 bit).
- FlagPerf (README and scripts of each case): one node; Llama 3 8B by Megatron-Core 0.6, Aquila 2 7B by FlagScale, Llama 2 7B by
  Megatron-DeepSpeed and by DeepSpeed with the Transformers library; with memory.
- NVIDIA dgxc-benchmarking: MaxText and Paxml on H100, fully sharded.
- Narayanan 2021 table 2: DeepSpeed ZeRO-3 without model parallelism, and Megatron-LM with it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from bench.cost_model_data import Row, table

# Hidden size and layers by billions of parameters (`MSIZE` of BigScience's scripts and the text of `gpt2-16gb-nodes.md`).
_BIGSCIENCE = {
    "7.5B": (4096, 36),
    "18B": (6144, 40),
    "25B": (7168, 40),
    "30B": (7168, 48),
    "39B": (8192, 48),
    "50B": (8192, 64),
    "52B": (8192, 64),
    "65B": (9216, 64),
    "78B": (10240, 64),
    "116B": (12288, 64),
    "206B": (16384, 64),
}
_SEVERAL_BATCHES = 4


def bigscience(folder: Path) -> Iterator[Row]:
    """`experiments/` of bigscience-workshop/bigscience."""
    for row in table(folder, "bigscience_chronicles_throughput.csv"):
        line, section = int(row["line"]), row["section"]
        if row["file"].endswith("gpt2.md"):
            found = _gpt2(row, line, section)
        elif row["file"].endswith("tr3m-1B3.md"):
            found = _small(row, line, section)
        elif row["file"].endswith("tr8-104B.md") and section == "BNB":
            found = _wide(row)
        else:
            # Table 1 of Narayanan 2021 once more; runs of 104B whose feed-forward was set to another size by mistake.
            continue
        if found is not None:
            yield {
                "accelerator": "V100-SXM2-32GB",
                "node_size": "4",
                "fabric_gbps": "12.5",
                "precision": "fp16",
                "attention": "unfused",
                "sp": "0",
                "recompute": "full",
                "step_s": (row["Speed"] or "").removesuffix("s"),
                **found,
            }


def _padded(tp: int) -> str:
    """Vocabulary of GPT-2 as Megatron-LM pads it."""
    return str(math.ceil(50257 / (128 * tp)) * 128 * tp)


def _gpt2(row: Row, line: int, section: str) -> Row | None:
    size, gpus = row["Size"], int(row["GPUs"])
    if size not in _BIGSCIENCE or not row["Speed"]:
        return None
    hidden, layers = _BIGSCIENCE[size]
    shape = {"hidden": str(hidden), "layers": str(layers), "heads": "32", "seq": "1024", "n_accel": str(gpus)}
    micro, batch = row["Mic-BS"] or row["MBS"], row["Glob-BS"] or row["GBS"]
    if section.startswith("HF"):
        # Without offload only: three rows of the table of performance have it, those of the largest models as well.
        if (row["Opt Offl"], row["Par Offl"]) != ("N", "N"):
            return None
        layout = {"group": "bigscience-hf-zero3", "tp": "1", "pp": "1", "zero": "3", "vocab": "50257"}
        return {**shape, **layout, "mbs": micro, "gbs": batch}
    dp = int(row["DP"])
    if "ZeRO" in section:
        offloaded = 400
        tp = gpus // dp
        if line == offloaded or int(micro) * dp != int(batch):
            return None
        layout = {"group": "bigscience-megatron-zero3", "tp": str(tp), "pp": "1", "zero": "3", "vocab": _padded(tp)}
        return {**shape, **layout, "mbs": micro, "gbs": batch}
    pp, tp = int(row["PP"]), 4
    batches = int(row["PP Chunks"] or row["PP chunks"] or row["GAS"])
    if tp * pp * dp != gpus:
        return None
    if section == "Megatron":
        group = "bigscience-megatron-largest" if batches == _SEVERAL_BATCHES else "bigscience-megatron"
        if int(micro) * batches * dp != int(batch):
            return None
    else:
        # Micro batches of two rows are those of the row above; what is accumulated and the batch tell.
        group = "bigscience-megatron-deepspeed"
        micro = str(int(batch) // (batches * dp))
    memory = re.match(r"\d+", row["GPU M"] or "")
    small = section == "Megatron" and line < 80
    return {
        **shape,
        "group": group,
        **({"accelerator": "V100-SXM2-16GB"} if small else {}),
        "vocab": _padded(tp),
        "tp": str(tp),
        "pp": str(pp),
        "dp": str(dp),
        "zero": "0",
        "mbs": micro,
        "gbs": batch,
        "mem_gib": memory[0] if memory else "",
    }


def _small(row: Row, line: int, section: str) -> Row:
    """1.3B, DeepSpeed with its first stage; the second table of 32 GB is without recomputation."""
    memory = re.match(r"\d+", row["GPU M"] or row["Notes"])
    without = 40 <= line <= 50 and "32GB" in section
    return {
        "group": f"bigscience-1b3-{section[:4].lower()}",
        "accelerator": f"V100-SXM2-{section[:4]}",
        "hidden": "2048",
        "layers": "24",
        "heads": "16",
        "seq": "2048",
        "vocab": _padded(int(row["TP"])),
        "n_accel": "8",
        "tp": row["TP"],
        "pp": row["PP"],
        "dp": row["DP"],
        "mbs": row["MBS"],
        "gbs": "512",
        "zero": "1",
        "recompute": "none" if without else "full",
        "mem_gib": memory[0] if memory else "",
    }


def _wide(row: Row) -> Row:
    """104B; with an optimiser in 8 bit the time counts, not the memory."""
    memory = re.match(r"(\d+)GB .same conf", row["Notes"])
    return {
        "group": "bigscience-104b",
        "hidden": "16384",
        "layers": "32",
        "heads": "32",
        "seq": "2048",
        "vocab": _padded(int(row["TP"])),
        "n_accel": "128",
        "tp": row["TP"],
        "pp": row["PP"],
        "dp": row["DP"],
        "mbs": row["MBS"],
        "gbs": "2048",
        "zero": "1",
        "mem_gib": memory[1] if memory and memory[1] == "30" else "",
    }


def mlperf(folder: Path) -> Iterator[Row]:
    """`NVIDIA/benchmarks/gpt3/implementations/pytorch` of mlcommons/training_results_v3.0."""
    for row in table(folder, "mlperf_llm_layouts_steps.csv"):
        if not (row["tp"] and row["step_s_median"]):
            continue
        yield {
            "group": "mlperf-gpt3-h100-fp8",
            "accelerator": "H100-SXM5-80GB",
            "layers": "96",
            "hidden": "12288",
            "heads": "96",
            "vocab": "51200",
            "n_accel": row["n_accel"],
            **{name: str(int(float(row[name]))) for name in ("seq", "tp", "pp", "cp", "vpp", "dp", "mbs", "gbs")},
            "precision": "fp8",
            "gradients": "bf16+fp32",
            "recompute": "selective",
            "sp": "1",
            "zero": "1",
            "step_s": row["step_s_median"],
        }


def flagperf(folder: Path) -> Iterator[Row]:
    """`training/nvidia/*` of FlagOpen/FlagPerf: tokens per second and chip, and GiB in use of a chip."""
    for row in table(folder, "flagperf_training.csv"):
        memory = re.match(r"(\d+)/80", row["mem_used_over_cap_gib"] or "")
        found = _FLAGPERF.get(row["case"])
        if row["vendor"] != "nvidia" or row["n_accel"] != "8" or memory is None or found is None:
            continue
        hyper = {name: int(value) for name, value in re.findall(r"(MPE|LBS|GAS)=(\d+)", row["hp"])}
        sizes = {name: int(value) for name, value in re.findall(r"(TP|PP|DP)(\d+)", row["parallel"])}
        tp, pp = sizes.get("TP", 1), sizes.get("PP", 1)
        seq = hyper.get("MPE", int(found["seq"]))
        micro = hyper.get("LBS", 1)
        batch = int(found["gbs"]) if "gbs" in found else micro * hyper.get("GAS", int(found["gas"])) * 8 // (tp * pp)
        yield {
            "accelerator": "A100-SXM4-80GB" if row["config"].startswith("A100") else "A800-SXM4-80GB",
            "n_accel": "8",
            **{name: value for name, value in found.items() if name not in {"gas", "gbs"}},
            "seq": str(seq),
            "tp": str(tp),
            "pp": str(pp),
            "mbs": str(micro),
            "gbs": str(batch),
            "attention": "flash2",
            "step_s": repr(batch * seq / (float(row["value"]) * 8)),
            "mem_gib": memory[1],
        }


_AQUILA = {
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "ffn": "11008",
    "gated": "1",
    "tied": "0",
    "vocab": "100008",
    "seq": "2048",
    "precision": "bf16",
    "recompute": "none",
    "sp": "0",
    "zero": "1",
    "group": "flagscale-a800",
}
_LLAMA2 = {"model": "llama2-7b", "seq": "4096"}
# Beside each case: batch, or how many micro batches are accumulated where the row does not say (`config_*.py`, README).
_FLAGPERF: dict[str, Row] = {
    # "recompute-activations" is the selective kind. Its README names the chip A800, the table A100.
    "llama3_8B-megatron": {
        "group": "megatron-core-0.6-a100",
        "accelerator": "A800-SXM4-80GB",
        "model": "llama3-8b",
        "seq": "8192",
        "gbs": "512",
        "precision": "bf16",
        "recompute": "selective",
        "zero": "1",
    },
    "aquila2_7b-flagscale": {**_AQUILA, "gas": "9"},
    "aquila2_7b_finetune-flagscale": {**_AQUILA, "gas": "4"},
    "llama2_7b-megatron-deepspeed": {
        **_LLAMA2,
        "group": "flagperf-megatron-deepspeed-a800",
        "precision": "bf16",
        "zero": "1",
        "gas": "32",
    },
    # The model is that of the Transformers library; nothing says whether it recomputes.
    "llama2_7b-deepspeed": {
        **_LLAMA2,
        "group": "flagperf-deepspeed-a800",
        "precision": "fp16",
        "zero": "3",
        "eager": "1",
        "gas": "1",
    },
}


_JAX = {
    "Maxtext Llama3 70b": ("maxtext-h100", {"model": "llama3-70b", "seq": "8192"}),
    "Maxtext LLama2 70b": ("maxtext-h100", {"model": "llama2-70b", "seq": "4096"}),
    "Paxml GPT5B": (
        "paxml-h100",
        {"layers": "24", "hidden": "4096", "heads": "32", "ffn": "16384", "vocab": "51200", "seq": "2048"},
    ),
}


def jax_on_gpus(folder: Path) -> Iterator[Row]:
    """`maxtext/README_70b.md` and `paxml/README_5b.md` of NVIDIA/dgxc-benchmarking: fully sharded."""
    for row in table(folder, "nvidia_dgxc_benchmarking.csv"):
        found = next((known for name, known in _JAX.items() if row["table"].startswith(name)), None)
        column = re.search(r"(\d+)x H100 GPUs \(.*?GBS=(\d+)\)", row["column"])
        micro = re.search(r"MBS=(\d+)", row["table"])
        if found is None or column is None or micro is None:
            continue
        precision = "fp8" if "FP8" in row["table"] else "bf16"
        yield {
            "group": f"{found[0]}-{precision}",
            "accelerator": "H100-SXM5-80GB",
            **found[1],
            "n_accel": column[1],
            "tp": "1",
            "pp": "1",
            "mbs": micro[1],
            "gbs": column[2],
            "precision": precision,
            "zero": "3",
            "step_s": row["step_s"],
        }


# Hidden size, layers and heads of Narayanan 2021 table 1 (530B) and of GPT-3, tensor and pipeline parallelism of 175B and 530B.
_TABLE_2 = {"174.6": ("12288", "96", "96", "12"), "529.6": ("20480", "105", "128", "35")}


def narayanan(folder: Path) -> Iterator[Row]:
    """Table 2 of Narayanan 2021; TFLOP/s become step times by its equation 3."""
    for row in table(folder, "literature_llm_training.csv"):
        scheme = row["note"].split(";")[0]
        if scheme not in {"ZeRO-3", "PTD"} or row["params_b"] not in _TABLE_2:
            continue
        hidden, layers, heads, stages = _TABLE_2[row["params_b"]]
        width, depth, seq, batch = float(hidden), float(layers), float(row["seq"]), float(row["gbs"])
        flops = 96 * batch * seq * depth * width**2 * (1 + seq / (6 * width) + 51200 / (16 * depth * width))
        divided = scheme == "PTD"
        yield {
            "group": "megatron-a100-table-2" if divided else "deepspeed-zero3-a100",
            "accelerator": "A100-SXM4-80GB",
            "layers": layers,
            "hidden": hidden,
            "heads": heads,
            "vocab": "51200",
            **{name: row[name] for name in ("seq", "n_accel", "mbs", "gbs", "precision", "recompute")},
            "tp": "8" if divided else "1",
            "pp": stages if divided else "1",
            "attention": "unfused",
            "sp": "0",
            "zero": "0" if divided else "3",
            "step_s": repr(flops / (float(row["tflops_per_accel"]) * 1e12 * float(row["n_accel"]))),
        }


def later_rows(folder: Path) -> list[Row]:
    """Every adapter's rows."""
    sources = (bigscience(folder), mlperf(folder), flagperf(folder), jax_on_gpus(folder), narayanan(folder))
    return [row for source in sources for row in source]
