"""Needs the learning environment (`make learning-venv`): live parity of torch and onnxruntime, and what the generator promises."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from learning.node_state.compare import recorded
from learning.node_state.dataset import CLASSES, snapshots, sources
from learning.node_state.export import exported, tensors
from learning.node_state.fabrics import read_gml
from learning.node_state.faults import FOLDS, Kind
from learning.node_state.loads import SERIES_FILE
from learning.node_state.network import NodeStateNetwork
from learning.node_state.parity import CHECKED, TRACED, random_graph
from learning.node_state.scores import f1_scores, interval, macro_f1
from services.graph.node_state import NodeState
from services.graph.recognition.features import Quantity


@pytest.mark.parametrize("neighbours", [True, False], ids=["gnn", "mlp"])
def test_exported_networks_answer_as_torch_does(tmp_path: Path, neighbours: bool) -> None:
    torch.manual_seed(3)
    network = NodeStateNetwork(neighbours=neighbours).eval()
    path = tmp_path / "m.onnx"
    exported(network, path)
    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    wanted = [item.name for item in session.get_inputs()]
    for number, size in enumerate(CHECKED):
        assert size != TRACED
        inputs, around = random_graph(*size, seed=number)
        given = {"inputs": inputs} | {name: getattr(around, name) for name in wanted if name != "inputs"}
        logits, load = session.run(["logits", "load"], given)
        with torch.no_grad():
            expected = network(*tensors(inputs, around))
        np.testing.assert_allclose(logits, expected[0].numpy(), atol=1e-4)
        np.testing.assert_allclose(load, expected[1].numpy(), atol=1e-5)


def test_the_same_seed_gives_the_same_data_and_splits_are_apart() -> None:
    found = sources(None)
    first, again = (snapshots(found, "train", list(Kind), 2, seed=5, most_nodes=40) for _ in range(2))
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.windows, other.windows)
        np.testing.assert_array_equal(one.label, other.label)
    families = {split: {shape.family for shape in found.shapes if shape.split == split} for split in ("train", "test")}
    assert not families["train"] & families["test"]


def test_without_faults_no_node_is_ill_and_sleepers_are_silent() -> None:
    looks = snapshots(sources(None), "train", [], 4, seed=2, most_nodes=60)
    labels = {CLASSES[number] for look in looks for number in look.label}
    assert labels <= {NodeState.HEALTHY, NodeState.BUSY, NodeState.DEGRADED, NodeState.ASLEEP}
    hot = sum(int((look.label == CLASSES.index(NodeState.DEGRADED)).sum()) for look in looks)
    assert hot <= 0.01 * sum(len(look.label) for look in looks)
    for look in looks:
        asleep = look.label == CLASSES.index(NodeState.ASLEEP)
        assert np.isnan(look.windows[asleep][:, -1, Quantity.UTILIZATION]).all()


def test_folds_share_no_kind_and_hold_them_all() -> None:
    assert sum(len(fold) for fold in FOLDS) == len(Kind)
    assert frozenset().union(*FOLDS) == frozenset(Kind)


def test_a_gml_file_by_hand(tmp_path: Path) -> None:
    path = tmp_path / "Net2004.gml"
    nodes = "".join(f'  node [\n    id {number}\n    label "x"\n  ]\n' for number in (3, 7, 9))
    edges = "".join(f"  edge [\n    source {a}\n    target {b}\n  ]\n" for a, b in ((3, 7), (7, 3), (9, 9), (7, 9)))
    path.write_text(f"graph [\n{nodes}{edges}]\n")
    shape = read_gml(path)
    assert (shape.family, shape.sites, shape.links) == ("net", 3, ((0, 1), (1, 2)))
    path.write_text("graph [\n  node [\n    id 1\n  ]\n  edge [\n    source 1\n    target 2\n  ]\n]\n")
    with pytest.raises(ValueError, match=r"Net2004\.gml:7"):
        read_gml(path)


def test_scores_by_hand() -> None:
    truth, answer = np.array([0, 0, 1, 1]), np.array([0, 1, 1, 1])
    assert f1_scores(truth, answer)[:2].tolist() == pytest.approx([2 / 3, 0.8])
    assert macro_f1(truth, answer) == pytest.approx((2 / 3 + 0.8) / 2)
    low, high = interval([0.5, 0.5, 0.5])
    assert (low, high) == (0.5, 0.5)


def test_a_comparison_on_recorded_data_names_it(tmp_path: Path) -> None:
    assert recorded(None, sources(None)) == []
    zoo, figures = tmp_path / "net/topologyzoo", tmp_path / "figures"
    zoo.mkdir(parents=True)
    figures.mkdir()
    ring = "".join(f"  node [\n    id {n}\n  ]\n" for n in range(4))
    ring += "".join(f"  edge [\n    source {n}\n    target {(n + 1) % 4}\n  ]\n" for n in range(4))
    (zoo / "Ring.gml").write_text(f"graph [\n{ring}]\n")
    with gzip.open(figures / SERIES_FILE, "wt") as stream:
        stream.write("series,time,running_gpu_num,total_gpu_num\n" + "a,0,1,2\n" * 20)
    found = sources(tmp_path)
    assert found.real
    before = recorded(tmp_path, found)
    assert [source.name for source in before] == [SERIES_FILE, "topologyzoo"]
    (zoo / "Ring.gml").rename(zoo / "Other.gml")
    assert recorded(tmp_path, found)[1] != before[1]
