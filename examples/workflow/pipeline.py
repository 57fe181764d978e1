"""The steps of a workflow that looks for the best n-gram model of a text: prepare, two sweeps side by side, merge.

Each step is one task of the job and a process of its own. Steps hand results on as files below MERIDIAN_WORK_DIR, written
under a temporary name and renamed, so a step that is killed and run again never leaves half a file to the next.

The model of order n predicts a byte from the n - 1 before it, smoothed towards the frequency of the byte:
p = (count(context, byte) + alpha * p1(byte)) / (count(context) + alpha). The sweep looks for the best alpha on held-out
text.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import numpy as np  # noqa: E402
from numpy.typing import NDArray  # noqa: E402

ALPHAS = tuple(float(2.0**power) for power in range(-4, 9))
_BYTES = 256
_PARAGRAPHS_PER_HELD_OUT = 10
_TEXT_FILE = "text.npz"


class StepInputError(Exception):
    """A file that an earlier step writes is missing: the step was run out of order or with another work directory."""


def prepare(work_dir: Path) -> None:
    """Divide the language reference by paragraphs, every tenth held out, and store both parts."""
    from pydoc_data.topics import topics

    paragraphs = [part for name in sorted(topics) for part in topics[name].split("\n\n") if part.strip()]
    held_out = paragraphs[::_PARAGRAPHS_PER_HELD_OUT]
    training = [part for index, part in enumerate(paragraphs) if index % _PARAGRAPHS_PER_HELD_OUT]
    temporary = work_dir / f".{_TEXT_FILE}.{os.getpid()}.tmp"
    with temporary.open("wb") as file:
        np.savez(file, training=_as_bytes(training), held_out=_as_bytes(held_out))
    temporary.replace(work_dir / _TEXT_FILE)
    _report(1, 1, {"paragraphs": len(paragraphs)})


def sweep(work_dir: Path, order: int) -> None:
    """Held-out loss of the model of `order` for each alpha; the best goes to sweep-<order>.json."""
    with _reading(work_dir / _TEXT_FILE) as file, np.load(file) as stored:
        training, held_out = stored["training"], stored["held_out"]
    losses: dict[float, float] = {}
    for done, alpha in enumerate(ALPHAS, start=1):
        losses[alpha] = held_out_loss(training, held_out, order, alpha)
        _report(done, len(ALPHAS), {"loss": losses[alpha], "alpha": alpha, "best_loss": min(losses.values())})
    best = min(losses, key=lambda alpha: losses[alpha])
    _write_json(work_dir / f"sweep-{order}.json", {"order": order, "alpha": best, "loss": losses[best]})


def merge(work_dir: Path, orders: list[int]) -> None:
    """Compare the sweeps and write the winner to result.json."""
    candidates: list[dict[str, Any]] = []
    for order in orders:
        with _reading(work_dir / f"sweep-{order}.json") as file:
            candidates.append(json.load(file))
    best = min(candidates, key=lambda candidate: candidate["loss"])
    _write_json(work_dir / "result.json", {"best": best, "candidates": candidates})
    _report(1, 1, {"loss": best["loss"], "order": best["order"]})
    print(f"best: order {best['order']}, alpha {best['alpha']:g}, {best['loss']:.4f} nats per byte", flush=True)


def held_out_loss(training: NDArray[np.uint8], held_out: NDArray[np.uint8], order: int, alpha: float) -> float:
    """Mean negative log-likelihood of `held_out` in nats per byte."""
    # one imaginary occurrence of every byte keeps a byte that training never saw possible
    unigram = (np.bincount(training, minlength=_BYTES) + 1.0) / (len(training) + _BYTES)
    grams, histories = _grams(training, order)
    asked, asked_histories = _grams(held_out, order)
    numerator = _occurrences(grams, asked) + alpha * unigram[asked % _BYTES]
    denominator = _occurrences(histories, asked_histories) + alpha
    return float(-np.log(numerator / denominator).mean())


def _grams(text: NDArray[np.uint8], order: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Each run of `order` bytes as one number, and the number of its history (all but the last byte)."""
    length = len(text) - order + 1
    histories = np.zeros(length, dtype=np.int64)
    for position in range(order - 1):
        histories = histories * _BYTES + text[position : position + length]
    return histories * _BYTES + text[order - 1 :], histories


def _occurrences(seen: NDArray[np.int64], asked: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often each of `asked` occurs in `seen`."""
    values, counts = np.unique(seen, return_counts=True)
    positions = np.minimum(np.searchsorted(values, asked), len(values) - 1)
    return np.where(values[positions] == asked, counts[positions], 0)


def _as_bytes(paragraphs: list[str]) -> NDArray[np.uint8]:
    return np.frombuffer("\n\n".join(paragraphs).encode(), dtype=np.uint8)


def _reading(path: Path) -> Any:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise StepInputError(f"{path} is missing: has the step before run with the same MERIDIAN_WORK_DIR?") from error


def _write_json(path: Path, content: dict[str, Any]) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(path)


def _report(step: int, total_steps: int, metrics: dict[str, float]) -> None:
    assert all(math.isfinite(value) for value in metrics.values())
    progress = {"step": step, "total_steps": total_steps, "metrics": metrics}
    print("@meridian " + json.dumps({"progress": progress}), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("step", choices=["prepare", "sweep", "merge"])
    parser.add_argument("--order", type=int, default=2, choices=range(1, 8), help="sweep: bytes per n-gram")
    parser.add_argument("--orders", type=int, nargs="+", default=[2, 3], help="merge: the sweeps to compare")
    arguments = parser.parse_args()
    # A folder of this job's own below the directory that all its tasks share.
    work_dir = Path(os.environ.get("MERIDIAN_WORK_DIR") or ".") / "work" / os.environ.get("MERIDIAN_JOB_ID", "here")
    work_dir.mkdir(parents=True, exist_ok=True)
    try:
        if arguments.step == "prepare":
            prepare(work_dir)
        elif arguments.step == "sweep":
            sweep(work_dir, arguments.order)
        else:
            merge(work_dir, arguments.orders)
    except StepInputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
