"""A perceptron of two layers that corrects what the structure of jobs expects; trained on absolute errors, as it is scored."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from learning.demand.samples import HORIZONS, INPUTS, STRUCTURE, Samples
from learning.onnx_files import write_model

WIDTH = 32
RATE = 2e-3
BATCH = 512
OPSET = 18


class DemandNetwork(nn.Module):
    """Inputs [sample, INPUTS] to changes [sample, horizon], both in units of the series' scale."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(INPUTS, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, len(HORIZONS))
        )
        # It begins as the structure alone.
        last = self.layers[-1]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, inputs: Tensor) -> Tensor:
        """The expected change from the level."""
        squeezed = torch.sign(inputs) * torch.log1p(torch.abs(inputs))
        corrections: Tensor = self.layers(squeezed)
        return inputs[:, STRUCTURE : STRUCTURE + len(HORIZONS)] + corrections


def trained(train: Samples, validation: Samples, seed: int, epochs: int) -> DemandNetwork:
    """The epoch with the least error on ``validation``."""
    torch.manual_seed(seed)
    network = DemandNetwork()
    optimiser = torch.optim.AdamW(network.parameters(), RATE, weight_decay=1e-3)
    inputs, goal = torch.from_numpy(train.inputs), torch.from_numpy(train.goal)
    # Errors count in accelerators.
    weight = torch.from_numpy((train.scale / train.scale.mean()).astype(np.float32))[:, None]
    best, least = copy.deepcopy(network.state_dict()), missed(network, validation)
    draws = torch.Generator().manual_seed(seed)
    for _ in range(epochs):
        network.train()
        for part in torch.randperm(len(inputs), generator=draws).split(BATCH):
            optimiser.zero_grad()
            loss = (weight[part] * torch.abs(network(inputs[part]) - goal[part])).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
        error = missed(network, validation)
        if error < least:
            best, least = copy.deepcopy(network.state_dict()), error
    network.load_state_dict(best)
    return network.eval()


def forecast(network: DemandNetwork, samples: Samples) -> npt.NDArray[np.float64]:
    """Accelerators in demand, [sample, horizon]."""
    network.eval()
    with torch.no_grad():
        change = network(torch.from_numpy(samples.inputs)).numpy().astype(np.float64)
    return np.maximum(0.0, samples.level[:, None] + samples.scale[:, None] * change)


def missed(network: DemandNetwork, samples: Samples) -> float:
    """Mean absolute error in accelerators."""
    return float(np.abs(forecast(network, samples) - samples.value).mean())


def exported(network: DemandNetwork, path: Path) -> None:
    """Write the network by the dynamo exporter, for any number of samples."""
    network.eval()
    program = torch.onnx.export(
        network,
        (torch.zeros(7, INPUTS),),
        dynamo=True,
        opset_version=OPSET,
        input_names=["inputs"],
        output_names=["change"],
        dynamic_shapes=({0: torch.export.Dim("samples")},),
        verbose=False,
    )
    write_model(program, path)
