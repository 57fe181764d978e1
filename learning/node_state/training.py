"""Training of the network and of the perceptron: batches of fabrics, class weights, the epoch that validates best."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from learning.node_state.dataset import CLASSES, UNKNOWN_LOAD, Snapshot
from learning.node_state.network import NodeStateNetwork
from learning.node_state.scores import macro_f1
from services.graph.recognition.features import QUANTITIES, SUMMARIES, encoded
from services.graph.recognition.neighbourhood import Neighbourhood, neighbourhood

BATCH = 6
RATE = 4e-3
LOAD_WEIGHT = 4.0
# Share of the quantities of a node that are not read in training: kinds of fault that were not trained on show in others.
UNREAD = 0.15


@dataclass(frozen=True, slots=True)
class Batch:
    """Some fabrics as one graph; the first six as `NodeStateNetwork.forward` takes them."""

    inputs: Tensor
    switch: Tensor
    site: Tensor
    switch_inverse: Tensor
    site_inverse: Tensor
    near: Tensor
    label: Tensor
    load: Tensor

    def arguments(self) -> tuple[Tensor, ...]:
        """Of the network."""
        return self.inputs, self.switch, self.site, self.switch_inverse, self.site_inverse, self.near


def batch_of(looks: Sequence[Snapshot]) -> Batch:
    """Fabrics side by side: numbers of groups are shifted, links stay within each."""
    parts = [neighbourhood(look.switch_of, look.site_of, look.site_links, look.sites) for look in looks]
    inputs = np.concatenate([encoded(look.windows) for look in looks])
    joined = _joined(parts)
    return Batch(
        torch.from_numpy(inputs),
        torch.from_numpy(joined.switch),
        torch.from_numpy(joined.site),
        torch.from_numpy(joined.switch_inverse),
        torch.from_numpy(joined.site_inverse),
        torch.from_numpy(joined.near),
        torch.from_numpy(np.concatenate([look.label for look in looks])),
        torch.from_numpy(np.concatenate([look.load for look in looks])),
    )


def _joined(parts: Sequence[Neighbourhood]) -> Neighbourhood:
    switches = np.cumsum([0, *(len(part.switch_inverse) for part in parts)])
    sites = np.cumsum([0, *(len(part.site_inverse) for part in parts)])
    near = np.zeros((sites[-1], sites[-1]), dtype=np.float32)
    for number, part in enumerate(parts):
        inside = slice(sites[number], sites[number + 1])
        near[inside, inside] = part.near
    return Neighbourhood(
        np.concatenate([part.switch + switches[number] for number, part in enumerate(parts)]),
        np.concatenate([part.site + sites[number] for number, part in enumerate(parts)]),
        np.concatenate([part.switch_inverse for part in parts]),
        np.concatenate([part.site_inverse for part in parts]),
        near,
    )


def trained(
    train: Sequence[Snapshot], validation: Sequence[Snapshot], seed: int, *, neighbours: bool, epochs: int
) -> NodeStateNetwork:
    """The network of the epoch with the best macro-F1 on ``validation``."""
    torch.manual_seed(seed)
    chance = np.random.default_rng(seed)
    network = NodeStateNetwork(neighbours=neighbours)
    counts = np.bincount(np.concatenate([look.label for look in train]), minlength=len(CLASSES))
    weights = torch.tensor((counts.sum() / np.maximum(counts, 1)) ** 0.5, dtype=torch.float32)
    criterion = nn.CrossEntropyLoss(weight=weights / weights.mean(), label_smoothing=0.02)
    optimiser = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=1e-3)
    order = chance.permutation(len(train))
    batches = [batch_of([train[place] for place in order[at : at + BATCH]]) for at in range(0, len(order), BATCH)]
    checks = [batch_of(validation[at : at + BATCH]) for at in range(0, len(validation), BATCH)]
    rounds = epochs * len(batches)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE, total_steps=rounds)
    best, kept = -1.0, network.state_dict()
    for _ in range(epochs):
        network.train()
        for number in chance.permutation(len(batches)):
            batch = batches[int(number)]
            logits, load = network(*_dropped(batch))
            known = batch.load != UNKNOWN_LOAD
            lost = criterion(logits, batch.label) + LOAD_WEIGHT * (load - batch.load)[known].abs().mean()
            optimiser.zero_grad()
            lost.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            schedule.step()
        score = _score(network, checks)
        if score > best:
            best, kept = score, copy.deepcopy(network.state_dict())
    network.load_state_dict(kept)
    network.eval()
    return network


def _dropped(batch: Batch) -> tuple[Tensor, ...]:
    """The batch without a few quantities at random, so that no single exporter is relied upon."""
    inputs = batch.inputs
    keep = (torch.rand((inputs.shape[0], QUANTITIES)) > UNREAD).to(inputs.dtype).repeat(1, SUMMARIES)
    return (inputs * keep, *batch.arguments()[1:])


def _score(network: NodeStateNetwork, batches: Sequence[Batch]) -> float:
    network.eval()
    with torch.no_grad():
        found = torch.cat([network(*batch.arguments())[0].argmax(dim=1) for batch in batches])
    return macro_f1(torch.cat([batch.label for batch in batches]).numpy(), found.numpy())


def answers(
    network: NodeStateNetwork, looks: Sequence[Snapshot]
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Logits ``[all nodes, 6]`` and loads ``[all nodes]``, look after look."""
    network.eval()
    logits, loads = [], []
    with torch.no_grad():
        for start in range(0, len(looks), BATCH):
            found, load = network(*batch_of(looks[start : start + BATCH]).arguments())
            logits.append(found.numpy())
            loads.append(load.numpy())
    return np.concatenate(logits), np.concatenate(loads)


def calibration(network: NodeStateNetwork, looks: Sequence[Snapshot]) -> float:
    """The temperature by which logits are divided so that confidences are honest on ``looks`` (Guo et al., ICML 2017)."""
    logits, _ = answers(network, looks)
    label = np.concatenate([look.label for look in looks])
    best, kept = np.inf, 1.0
    for temperature in np.geomspace(0.5, 4.0, 25):
        scaled = logits / temperature
        scaled -= scaled.max(axis=1, keepdims=True)
        log_sum = np.log(np.exp(scaled).sum(axis=1))
        lost = float((log_sum - scaled[np.arange(len(label)), label]).mean())
        if lost < best:
            best, kept = lost, float(temperature)
    return kept
