"""`python -m simulation ...` is `meridian simulate ...`."""

import sys

from meridian.cli.main import main
from simulation.cli import simulate

if __name__ == "__main__":
    main.add_command(simulate)
    main(["simulate", *sys.argv[1:]], prog_name="meridian")
