"""The network: nodes exchange what they see with their switch, their site and the sites linked to it.

A relational graph network (Schlichtkrull et al., "Modeling Relational Data with Graph Convolutional Networks", ESWC 2018)
with three relations, and two heads: the state of a node and its load one interval later. Means are sums over sizes; sums are
``index_add``, which the dynamo exporter translates rightly, unlike scatter with a mean. Without relations it is the
perceptron that it is compared with.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from learning.node_state.dataset import CLASSES
from services.graph.recognition.features import INPUTS

HIDDEN = 48
# Share of messages that are lost in training: a fault of one node must be seen without its neighbours' word.
SILENCE = 0.4


def mean_over(values: Tensor, group: Tensor, inverse_sizes: Tensor) -> Tensor:
    """Mean of ``values [n, h]`` per group: ``group [n]`` names it, ``inverse_sizes [g]`` is 1 / size; ``[g, h]``."""
    sums = torch.zeros((inverse_sizes.shape[0], values.shape[1]), dtype=values.dtype, device=values.device)
    return sums.index_add(0, group, values) * inverse_sizes.unsqueeze(1)


class Exchange(nn.Module):
    """One round: own state, mean of the switch, mean of the site, mean of the sites next to it."""

    def __init__(self, width: int, *, neighbours: bool) -> None:
        super().__init__()
        self.own = nn.Linear(width, width)
        self.neighbours = neighbours
        if neighbours:
            self.switch = nn.Linear(width, width, bias=False)
            self.site = nn.Linear(width, width, bias=False)
            self.beyond = nn.Linear(width, width, bias=False)

    def forward(
        self, state: Tensor, switch: Tensor, site: Tensor, switch_inverse: Tensor, site_inverse: Tensor, near: Tensor
    ) -> Tensor:
        """``state [n, h]`` -> ``[n, h]``."""
        heard = self.own(state)
        if self.neighbours:
            behind = mean_over(state, switch, switch_inverse)
            around = mean_over(state, site, site_inverse)
            told = self.site(around) + self.beyond(near @ around)
            message = self.switch(behind).index_select(0, switch) + told.index_select(0, site)
            if self.training:
                message = message * (torch.rand((message.shape[0], 1)) > SILENCE)
            heard = heard + message
        return state + torch.relu(heard)


class NodeStateNetwork(nn.Module):
    """Inputs of one or more fabrics in, logits of states and the expected load out."""

    def __init__(self, *, neighbours: bool = True, width: int = HIDDEN, rounds: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, 2 * width)
        self.second = nn.Linear(2 * width, width)
        self.rounds = nn.ModuleList(Exchange(width, neighbours=neighbours) for _ in range(rounds))
        self.state = nn.Linear(width, len(CLASSES))
        self.load = nn.Linear(width, 1)

    def forward(
        self, inputs: Tensor, switch: Tensor, site: Tensor, switch_inverse: Tensor, site_inverse: Tensor, near: Tensor
    ) -> tuple[Tensor, Tensor]:
        """``inputs [n, INPUTS]``, ``switch [n]`` and ``site [n]`` numbers, inverse sizes, ``near [sites, sites]`` rows that sum
        to 1 or 0 -> logits ``[n, 6]`` and load ``[n]`` (0-1)."""
        state = torch.relu(self.second(torch.relu(self.first(inputs))))
        for exchange in self.rounds:
            state = exchange(state, switch, site, switch_inverse, site_inverse, near)
        return self.state(state), torch.sigmoid(self.load(state)).squeeze(1)
