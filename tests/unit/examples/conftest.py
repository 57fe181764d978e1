"""The examples are programs, not packages: their modules import each other by bare name, as `python train.py` does."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "train_transformer"))
