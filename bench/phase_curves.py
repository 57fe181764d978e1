"""Loss curves of MLPerf runs as the table that `meridian evaluate phases` reads: `python bench/phase_curves.py IN OUT`.

IN is mlperf_llm_run_steps.csv(.gz). A run's steps are its samples over the least distance of two records; the
family is round and benchmark. Records without a training loss are left out, which is counted on the standard error.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

NAMED_BY = ("round", "benchmark", "accelerator", "n_accel", "submitter", "system", "run")


def curves(source: Path) -> Iterator[tuple[str, str, str, str]]:
    """(run, step, train_loss, group) of every record with a training loss."""
    runs: dict[str, list[tuple[float, str, str]]] = {}
    with gzip.open(source, "rt", newline="") if source.suffix == ".gz" else source.open(newline="") as stream:
        for row in csv.DictReader(stream):
            if row["train_loss"]:
                run = "/".join(row[name] for name in NAMED_BY)
                group = f"mlperf_{row['round']}_{row['benchmark']}"
                runs.setdefault(run, []).append((float(row["samples"]), row["train_loss"], group))
    for run, records in runs.items():
        samples = sorted({record[0] for record in records})
        apart = min((after - before for before, after in pairwise(samples)), default=1.0)
        for number, loss, group in records:
            yield run, f"{number / apart:g}", loss, group


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    written = 0
    with options.out.open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(("run", "step", "train_loss", "group"))
        for row in curves(options.source):
            table.writerow(row)
            written += 1
    print(f"{written} records with a training loss", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
