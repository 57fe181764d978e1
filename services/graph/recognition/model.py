"""The trained network behind onnxruntime, with the card that says what it is. One thread, no state of its own."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from services.graph.node_state import NodeState
from services.graph.recognition.features import WINDOW, Quantity, encoded
from services.graph.recognition.neighbourhood import Neighbourhood

SHIPPED = Path(__file__).parent.parent / "models" / "node_state.onnx"
GRAPH_INPUTS = ("switch", "site", "switch_inverse", "site_inverse", "near")


class ModelUnavailableError(Exception):
    """There is no model that can be served; the message says why. The rules serve then."""


@dataclass(frozen=True, slots=True)
class Answer:
    """Of all nodes: probabilities of ``classes`` (``[nodes, classes]``, rows sum to 1) and load one interval later, 0-1."""

    probabilities: npt.NDArray[np.float32]
    load: npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Card:
    """What the card beside the file says; ``temperature`` makes confidences honest (logits are divided by it)."""

    name: str
    classes: tuple[NodeState, ...]
    temperature: float
    sha256: str

    @classmethod
    def read(cls, path: Path) -> Card:
        """The card; `ModelUnavailableError` names the field that is missing or does not fit this program."""
        try:
            body: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ModelUnavailableError(f"{path.name}: {error}") from None
        if not isinstance(body, dict):
            raise ModelUnavailableError(f"{path.name}: not a JSON object")
        expected = {"window": WINDOW, "quantities": [item.name.lower() for item in Quantity]}
        for field, value in expected.items():
            if body.get(field) != value:
                raise ModelUnavailableError(f"{path.name}: {field}: made for {body.get(field)!r}, not for {value!r}")
        try:
            classes = tuple(NodeState[str(item).upper()] for item in body["classes"])
            return cls(str(body["name"]), classes, float(body["temperature"]), str(body["sha256"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ModelUnavailableError(f"{path.name}: {error!r}") from None


class NodeStateModel:
    """A file of the network with its card (``NAME.onnx``, ``NAME.card.json``).

    :raises ModelUnavailableError: from the constructor: a file is missing, is not the one of the card, or cannot be run.
    """

    def __init__(self, path: Path = SHIPPED) -> None:
        self.card = Card.read(path.with_suffix(".card.json"))
        try:
            content = path.read_bytes()
        except OSError as error:
            raise ModelUnavailableError(f"{path.name}: {error}") from None
        if hashlib.sha256(content).hexdigest() != self.card.sha256:
            raise ModelUnavailableError(f"{path.name}: not the file that its card describes (sha256)")
        try:
            import onnxruntime
        except ImportError as error:
            raise ModelUnavailableError(f"onnxruntime: {error}") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            self._session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # noqa: BLE001 - onnxruntime raises classes of its own for each status
            raise ModelUnavailableError(f"{path.name}: {error}") from None
        # A network without neighbours takes none; the exporter leaves such inputs out.
        self._wanted = {item.name for item in self._session.get_inputs()}

    def answer(self, windows: npt.NDArray[np.floating], around: Neighbourhood) -> Answer:
        """``windows [nodes, WINDOW, QUANTITIES]``, one domain at a time."""
        return self.run(encoded(windows), around)

    def run(self, inputs: npt.NDArray[np.float32], around: Neighbourhood) -> Answer:
        """The same from encoded windows ``[nodes, INPUTS]``."""
        given = {"inputs": inputs, **{name: getattr(around, name) for name in GRAPH_INPUTS}}
        logits, load = self._session.run(
            ["logits", "load"], {name: value for name, value in given.items() if name in self._wanted}
        )
        scaled = logits / self.card.temperature
        scaled -= scaled.max(axis=1, keepdims=True)
        likely = np.exp(scaled)
        return Answer(likely / likely.sum(axis=1, keepdims=True), load)
