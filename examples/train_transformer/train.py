"""Train a small transformer on bytes of text, data-parallel over the ranks of a gang. See README.md."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def main() -> int:
    """Exit codes: 0 done, 1 the gang broke, 2 wrong options or checkpoint, 143 stopped by SIGTERM."""
    arguments = _parser().parse_args()
    for name in _THREAD_VARIABLES:  # one rank is one thread; must be set before NumPy loads its BLAS
        os.environ.setdefault(name, "1")
    from collective import PeerLostError
    from launch import EXIT_TERMINATED, Launch, LaunchError, StopRequest, TerminatedError
    from rendezvous import RendezvousError
    from training import IncompatibleCheckpointError, Options, Run

    stop = StopRequest()
    stop.listen()
    try:
        launch = Launch.from_environment(os.environ)
        options = Options(**vars(arguments))
        if options.batch < launch.world_size:
            raise ValueError(f"--batch {options.batch} gives some of the {launch.world_size} ranks nothing to do")
        return Run(options, launch, stop).execute()
    except TerminatedError as error:
        print(error, file=sys.stderr, flush=True)
        return EXIT_TERMINATED
    except (LaunchError, IncompatibleCheckpointError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        return 2
    except (RendezvousError, PeerLostError, OSError) as error:
        print(f"rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr, flush=True)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--steps", type=_count, default=200, help="updates to make")
    parser.add_argument("--layers", type=_count, default=2, help="transformer blocks")
    parser.add_argument("--hidden", type=_count, default=128, help="width of the residual stream")
    parser.add_argument("--heads", type=_count, default=4, help="attention heads")
    parser.add_argument("--seq", type=_count, default=64, dest="sequence", help="context length in bytes")
    parser.add_argument("--batch", type=_count, default=32, help="rows per update, over all ranks")
    parser.add_argument("--lr", type=float, default=3e-3, dest="learning_rate", help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0, help="decides initial parameters and batches")
    parser.add_argument(
        "--checkpoint-every", type=int, default=20, help="updates between checkpoints; 0: only at the end"
    )
    parser.add_argument("--keep-checkpoints", type=_count, default=3, help="newest checkpoints that are kept")
    parser.add_argument("--step-time-s", type=float, default=0.0, help="least time per update, to make a demo last")
    parser.add_argument(
        "--stopping-patience-s", type=float, default=2.0, help="wait for other ranks so long when told to stop"
    )
    parser.add_argument("--text", type=Path, default=None, help="text file; default: the Python language reference")
    return parser


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not at least 1")
    return value


if __name__ == "__main__":
    sys.exit(main())
