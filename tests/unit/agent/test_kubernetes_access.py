"""How the agent comes to a cluster: each form of access, and what is wrong by its field."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent.engines.kubernetes.access import access_of
from agent.settings import read_settings
from meridian.errors import ConfigurationError


def kubeconfig(folder: Path, *, user: dict[str, Any] | None = None, **cluster: Any) -> Path:
    content = {
        "current-context": "one",
        "contexts": [{"name": "one", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443/", **cluster}}],
        "users": [{"name": "u", "user": {"token": "secret"} if user is None else user}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(content))
    return path


def test_a_kubeconfig(tmp_path: Path) -> None:
    pem = "-----BEGIN CERTIFICATE-----\nx\n"
    data = base64.b64encode(pem.encode()).decode()
    found = access_of(kubeconfig=kubeconfig(tmp_path, **{"certificate-authority-data": data}))
    assert (found.server, found.bearer(), found.authority) == ("https://10.0.0.1:6443", "secret", pem)
    (tmp_path / "token").write_text("first\n")
    found = access_of(kubeconfig=kubeconfig(tmp_path, user={"tokenFile": "token"}))
    assert found.bearer() == "first"
    (tmp_path / "token").write_text("second\n")
    assert found.bearer() == "second", "tokens are renewed"


def test_a_pod(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_text("pem")
    environment = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}
    found = access_of(environment=environment, account=tmp_path)
    assert (found.server, found.bearer(), found.authority) == ("https://10.96.0.1:443", "t", "pem")
    found = access_of(environment={**environment, "KUBERNETES_SERVICE_HOST": "fd00::1"}, account=tmp_path)
    assert found.server == "https://[fd00::1]:443"


def test_only_this_machine_without_tls(tmp_path: Path) -> None:
    for server in ("http://127.0.0.1:8001", "http://localhost:8001", "http://[::1]:8001"):
        assert access_of(server=server).server == server
    for server in (
        "http://10.0.0.1:8001",
        "http://127.0.0.1.evil.example:80",
        "ftp://127.0.0.1",
        "https://",
        "nonsense",
    ):
        with pytest.raises(
            ConfigurationError, match=r"domain\.own_scheduler\.server: .* is neither https nor http on this machine"
        ):
            access_of(server=server)
    with pytest.raises(ConfigurationError, match=r"server: 'http://10\.0\.0\.1' is neither"):
        access_of(kubeconfig=kubeconfig(tmp_path, server="http://10.0.0.1"))


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="neither kubeconfig nor server is given"):
        access_of(environment={})
    with pytest.raises(ConfigurationError, match=r"domain\.own_scheduler\.kubeconfig: .*no such file|No such file"):
        access_of(kubeconfig=tmp_path / "none")
    with pytest.raises(ConfigurationError, match=r"contexts has no 'two'"):
        access_of(kubeconfig=kubeconfig(tmp_path), context="two")
    with pytest.raises(ConfigurationError, match="insecure-skip-tls-verify is not supported"):
        access_of(kubeconfig=kubeconfig(tmp_path, **{"insecure-skip-tls-verify": True}))
    with pytest.raises(ConfigurationError, match="users: exec is not supported"):
        access_of(kubeconfig=kubeconfig(tmp_path, user={"exec": {"command": "aws"}}))
    with pytest.raises(ConfigurationError, match="certificate-authority-data"):
        access_of(kubeconfig=kubeconfig(tmp_path, **{"certificate-authority-data": "?"}))
    with pytest.raises(ConfigurationError, match=r"domain\.own_scheduler\.token_path"):
        access_of(server="https://10.0.0.1", token_path=tmp_path / "none")
    found = access_of(kubeconfig=kubeconfig(tmp_path, **{"certificate-authority-data": "eA=="}))
    with pytest.raises(ConfigurationError, match="certificate of the authority"):
        found.tls()
    (tmp_path / "list").write_text("[]")
    with pytest.raises(ConfigurationError, match="is no mapping"):
        access_of(kubeconfig=tmp_path / "list")


def settings(folder: Path, scheduling: dict[str, Any], **more: Any) -> Path:
    domain = {"domain_id": "k", "nodes": [{"node_id": "n1"}], "own_scheduler": {"kind": "kubernetes", **scheduling}}
    content = {
        "domain": domain,
        "kafka_bootstrap_servers": "127.0.0.1:9092",
        "data_dir": str(folder),
        "lease_s": 30,
        **more,
    }
    path = folder / "agent.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def test_the_agents_file(tmp_path: Path) -> None:
    found = read_settings(settings(tmp_path, {"image": "python:3.11", "volume": {"path": str(tmp_path), "host": True}}))
    assert found.domain.own_scheduler is not None
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, r"domain\.own_scheduler\.kubernetes\.image: Field required"),
        ({"image": "a b"}, {}, r"own_scheduler\.kubernetes\.image"),
        ({"image": "a", "namespace": "No"}, {}, r"own_scheduler\.kubernetes\.namespace"),
        ({"image": "a", "gang": "other"}, {}, r"own_scheduler\.kubernetes\.gang"),
        ({"image": "a", "volume": {"path": "/x"}}, {}, "either claim .* or host: true"),
        ({"image": "a", "volume": {"path": "/elsewhere", "claim": "c"}}, {}, "shared_dir: .* is not below /elsewhere"),
        ({"image": "a"}, {"lease_s": 10}, "lease_s: 10 s are too few for Kubernetes"),
        ({"image": "a"}, {"benchmark": {"enabled": True}}, "the nodes are Kubernetes'"),
    ]
    for scheduling, more, said in wrong:
        with pytest.raises(ConfigurationError, match=said):
            read_settings(settings(tmp_path, scheduling, **more))
