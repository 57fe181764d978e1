"""Recorded demand as the table that `meridian evaluate demand` reads: `python bench/demand_series.py IN OUT`.

IN is one of the files of 10-minute windows of public clusters (Helios Earth's virtual clusters, Philly's nodes); what is
not there is written as an empty value.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import sys
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    options = parser.parse_args(arguments)
    with gzip.open(options.source, "rt", newline="") as stream, options.out.open("w", newline="") as target:
        table = csv.writer(target)
        table.writerow(("series", "time", "value", "capacity"))
        for row in csv.DictReader(stream):
            if "active" in row:
                table.writerow(("philly_nodes", row["time"], row["active"], row["total"]))
            else:
                table.writerow((row["series"], row["time"], row["running_gpu_num"], row["total_gpu_num"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
