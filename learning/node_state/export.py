"""Exports a trained network to ONNX with its card, and records fixtures by which others check the file without torch."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from learning.node_state.dataset import CLASSES
from learning.node_state.network import NodeStateNetwork
from learning.node_state.parity import CHECKED, TRACED, random_graph, rows_of
from learning.onnx_files import write_model
from services.graph.recognition.features import WINDOW, Quantity
from services.graph.recognition.neighbourhood import Neighbourhood

OPSET = 18
NAMES = ("inputs", "switch", "site", "switch_inverse", "site_inverse", "near")


def tensors(inputs: npt.NDArray[np.float32], around: Neighbourhood) -> tuple[torch.Tensor, ...]:
    """As the network takes them."""
    given = (inputs, around.switch, around.site, around.switch_inverse, around.site_inverse, around.near)
    return tuple(torch.from_numpy(item) for item in given)


def exported(network: NodeStateNetwork, path: Path) -> None:
    """Write the network by the dynamo exporter with free numbers of nodes, switches and sites."""
    network.eval()
    nodes, switches, sites = (torch.export.Dim(name) for name in ("nodes", "switches", "sites"))
    shapes = ({0: nodes}, {0: nodes}, {0: nodes}, {0: switches}, {0: sites}, {0: sites, 1: sites})
    program = torch.onnx.export(
        network,
        tensors(*random_graph(*TRACED, seed=0)),
        dynamo=True,
        opset_version=OPSET,
        input_names=list(NAMES),
        output_names=["logits", "load"],
        dynamic_shapes=shapes,
        verbose=False,
    )
    write_model(program, path)


def write_card(path: Path, name: str, temperature: float, facts: dict[str, Any]) -> None:
    """The card beside the file ``path``: what the service checks, and ``facts``: data, seed, figures, baselines, commit."""
    card = {
        "name": name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "classes": [item.name.lower() for item in CLASSES],
        "window": WINDOW,
        "quantities": [item.name.lower() for item in Quantity],
        "temperature": temperature,
        "opset": OPSET,
        "torch": torch.__version__.partition("+")[0],
        **facts,
    }
    text = json.dumps(card, indent=1, ensure_ascii=False)
    path.with_suffix(".card.json").write_text(text + "\n", encoding="utf-8")


def record(network: NodeStateNetwork, path: Path) -> None:
    """What torch answers for the graphs of `CHECKED`: for some rows of each, logits and loads."""
    network.eval()
    kept: dict[str, npt.NDArray[Any]] = {}
    for number, size in enumerate(CHECKED):
        inputs, around = random_graph(*size, seed=number + 1)
        with torch.no_grad():
            logits, load = network(*tensors(inputs, around))
        rows = rows_of(size[0])
        kept[f"logits_{number}"], kept[f"load_{number}"] = logits.numpy()[rows], load.numpy()[rows]
    np.savez_compressed(path, **kept)  # type: ignore[arg-type]  # numpy's stub takes no mapping of arrays
