"""An exported network as a file: what the exporter says about its own source is left out, so that a rebuild is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx


def write_model(program: Any, path: Path) -> None:
    """Check the network of ``torch.onnx.export(dynamo=True)`` and write it to ``path``."""
    assert program is not None
    model = program.model_proto
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString())
