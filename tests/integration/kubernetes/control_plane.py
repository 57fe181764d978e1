"""A real control plane of Kubernetes on this machine: etcd, API server, controllers and scheduler, on loopback, in one folder.

Only the machines are not real: `kubelet` runs a pod's command as a process of this machine. The programs come from `make kubernetes`, or
MERIDIAN_KUBERNETES_BIN names their folder.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import json
import os
import secrets
import signal
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from subprocess import Popen
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from agent.node import proc
from meridian.embedded.probes import tcp_accepts
from meridian.embedded.process import ProcessSpec
from tests.fixtures_embedded import free_port, running

ROOT = Path(__file__).parents[3]
PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODES = ("k1", "k2", "k3")
CPUS, MEMORY_BYTES, GPUS = 8, 16 * 2**30, 4
GPU = "nvidia.com/gpu"
NAMESPACE = "meridian"
PATIENCE_S = float(os.environ.get("MERIDIAN_TEST_PATIENCE_S", "120"))
SERVICE_ACCOUNT = "system:serviceaccount:meridian:meridian-agent"
MARK = "MERIDIAN_TEST_KUBERNETES"


def programs_dir() -> Path:
    """Where the programs are expected."""
    return Path(os.environ.get("MERIDIAN_KUBERNETES_BIN", "") or ROOT / "deploy/kubernetes/bin")


def absent() -> str:
    """Programs of Kubernetes that this machine does not have."""
    return " ".join(name for name in PROGRAMS if not os.access(programs_dir() / name, os.X_OK))


@dataclass(slots=True)
class ControlPlane:
    """A running control plane. ``token_path`` is the agent's, with the rights of deploy/kubernetes/agent.yaml and no others."""

    folder: Path
    life: contextlib.ExitStack
    ports: dict[str, int]
    tokens: dict[str, str]
    kubelets: dict[str, Popen[bytes]] = field(default_factory=dict)
    server: Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Of the API server."""
        return f"https://127.0.0.1:{self.ports['api']}"

    @property
    def ca_path(self) -> Path:
        """What its certificate is checked against."""
        return self.folder / "pki/ca.crt"

    @property
    def token_path(self) -> Path:
        """The agent's token."""
        return self.folder / "agent.token"

    @property
    def kubeconfig(self) -> Path:
        """The agent's kubeconfig."""
        return self.folder / "agent.kubeconfig"

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> dict[str, Any]:
        """What the API server answers an administrator.

        :raises urllib.error.HTTPError: it refuses.
        """
        request = urllib.request.Request(
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self.tokens['admin']}", "Content-Type": kind},
        )
        context = ssl.create_default_context(cafile=str(self.ca_path))
        with urllib.request.urlopen(request, context=context, timeout=20) as answer:
            found: dict[str, Any] = json.loads(answer.read())
        return found

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        """Change fields of an object."""
        return self.call("PATCH", path, body, "application/merge-patch+json")

    def jobs(self) -> dict[str, dict[str, Any]]:
        """All Jobs of the agent's namespace."""
        found = self.call("GET", f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")["items"]
        return {item["metadata"]["name"]: item for item in found}

    def pods(self) -> dict[str, dict[str, Any]]:
        """All its pods."""
        found = self.call("GET", f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
        return {item["metadata"]["name"]: item for item in found}

    def until(self, there: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
        """Wait until something is so; what it is."""
        end = time.monotonic() + patience_s
        while True:
            with contextlib.suppress(urllib.error.URLError, ConnectionError, KeyError):
                if found := there():
                    return found
            assert time.monotonic() < end, f"never: {what}; {_last_words(self.folder)}"
            time.sleep(0.1)

    def start_server(self) -> None:
        """Start the API server; the one before it, if there is one, is killed."""
        if self.server is not None:
            self.server.kill()
            self.server.wait()
        self.server = self.life.enter_context(running(_server_spec(self)))
        self.until(lambda: self.call("GET", "/api/v1/namespaces/default"), "the API server answers")

    def forget_the_past(self) -> None:
        """Let etcd forget all older versions: who watches from one of them is told 410 once the API server has restarted."""
        etcd = f"http://127.0.0.1:{self.ports['etcd']}/v3/kv"

        def ask(path: str, body: Any) -> Any:
            request = urllib.request.Request(f"{etcd}/{path}", data=json.dumps(body).encode(), method="POST")
            with urllib.request.urlopen(request, timeout=20) as answer:
                return json.loads(answer.read())

        revision = ask("range", {"key": "AA=="})["header"]["revision"]
        ask("compaction", {"revision": revision, "physical": True})

    def start_kubelet(self, node: str) -> None:
        """Start a node."""
        arguments = json.dumps(
            {
                "node": node,
                "server": self.url,
                "ca": str(self.ca_path),
                "token": self.tokens["kubelet"],
                "port": free_port(f"kubelet-{node}"),
                "folder": str(self.folder),
                "capacity": {"cpu": str(CPUS), "memory": str(MEMORY_BYTES), "pods": "110", GPU: str(GPUS)},
                "labels": {"kubernetes.io/hostname": node, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"},
            }
        )
        words = (sys.executable, "-m", "tests.integration.kubernetes.kubelet", arguments)
        self.kubelets[node] = self.life.enter_context(running(_spec(self, f"kubelet-{node}", words, mark=node)))

    def node_dies(self, node: str) -> None:
        """``SIGKILL`` to a node's kubelet and everything that it started."""
        mark = f"{MARK}={self.folder}:{node}".encode()
        proc.kill_until_gone(lambda: proc.marked_processes(mark))
        self.kubelets[node].wait()

    def node_is(self, node: str, state: str) -> bool:
        """Whether Kubernetes says of a node that it is ready (True, False, Unknown)."""
        conditions = self.call("GET", f"/api/v1/nodes/{node}")["status"].get("conditions", [])
        return any(item["type"] == "Ready" and item["status"] == state for item in conditions)


@contextlib.contextmanager
def control_plane_running(folder: Path) -> Iterator[ControlPlane]:
    """The cluster until the block ends; nothing of it is left then."""
    ports = {name: free_port(name) for name in ("api", "etcd", "etcd-peer", "controllers", "scheduler")}
    tokens = {name: secrets.token_hex(16) for name in ("admin", "agent", "kubelet")}
    with contextlib.ExitStack() as life:
        life.callback(_end_marked, folder)
        plane = ControlPlane(folder, life.enter_context(contextlib.ExitStack()), ports, tokens)
        _write(plane)
        client, peer = (f"http://127.0.0.1:{ports[name]}" for name in ("etcd", "etcd-peer"))
        etcd = (
            "etcd", "--name=test", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={client}", "--unsafe-no-fsync",
            f"--advertise-client-urls={client}", f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=test={peer}", "--log-level=warn",
        )  # fmt: skip
        plane.life.enter_context(running(_spec(plane, "etcd", etcd, ports["etcd"])))
        plane.start_server()
        admin = f"--kubeconfig={folder / 'admin.kubeconfig'}"
        controllers = (
            "kube-controller-manager", admin, f"--secure-port={ports['controllers']}", "--bind-address=127.0.0.1",
            f"--cert-dir={folder / 'controllers'}", f"--service-account-private-key-file={folder / 'pki/sa.key'}",
            ("--controllers=job-controller,garbage-collector-controller,node-lifecycle-controller,taint-eviction-controller,"
            "pod-garbage-collector-controller,serviceaccount-controller,namespace-controller,resourcequota-controller"),
            "--node-monitor-period=500ms", "--node-monitor-grace-period=4s", "--node-startup-grace-period=20s",
            "--leader-elect=false", "--authorization-always-allow-paths=/healthz",
        )  # fmt: skip
        plane.life.enter_context(running(_spec(plane, "controllers", controllers, ports["controllers"])))
        scheduler = (
            "kube-scheduler", admin, f"--secure-port={ports['scheduler']}", "--bind-address=127.0.0.1", "--leader-elect=false",
            f"--cert-dir={folder / 'scheduler'}",
        )  # fmt: skip
        plane.life.enter_context(running(_spec(plane, "scheduler", scheduler, ports["scheduler"])))
        for document in yaml.safe_load_all((ROOT / "deploy/kubernetes/agent.yaml").read_text()):
            plane.until(lambda document=document: _applied(plane, document), str(document["metadata"]))
        for node in NODES:
            plane.start_kubelet(node)
        for node in NODES:
            plane.until(lambda node=node: plane.node_is(node, "True"), f"{node} is ready")
        account = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default"
        plane.until(lambda: plane.call("GET", account), "pods may be made")
        yield plane


def _applied(plane: ControlPlane, document: dict[str, Any]) -> bool:
    kinds = {
        "Namespace": "namespaces", "ServiceAccount": "serviceaccounts", "Role": "roles", "RoleBinding": "rolebindings",
        "ClusterRole": "clusterroles", "ClusterRoleBinding": "clusterrolebindings",
    }  # fmt: skip
    version = document["apiVersion"]
    start = f"/api/{version}" if version == "v1" else f"/apis/{version}"
    space = document["metadata"].get("namespace")
    plane.call("POST", f"{start}{f'/namespaces/{space}' if space else ''}/{kinds[document['kind']]}", document)
    return True


def _write(plane: ControlPlane) -> None:
    folder = plane.folder
    (folder / "pki").mkdir(parents=True)
    _write_certificates(folder / "pki")
    users = [
        f"{plane.tokens['admin']},admin,admin,system:masters",
        f"{plane.tokens['kubelet']},kubelet,kubelet,system:masters",
        f'{plane.tokens["agent"]},{SERVICE_ACCOUNT},agent,"system:serviceaccounts"',
    ]
    (folder / "tokens.csv").write_text("\n".join(users) + "\n")
    plane.token_path.write_text(plane.tokens["agent"])
    for name in ("admin", "agent"):
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": plane.url, "certificate-authority": "pki/ca.crt"}}],
            "users": [{"name": name, "user": {"token": plane.tokens[name]}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
        }
        (folder / f"{name}.kubeconfig").write_text(yaml.safe_dump(content))


def _write_certificates(folder: Path) -> None:
    """An authority, the certificate of all servers on this machine, and the key that signs tokens of service accounts."""
    now = dt.datetime.now(dt.UTC)

    def written(name: str, key: rsa.RSAPrivateKey, certificate: x509.Certificate | None) -> None:
        form = serialization.PrivateFormat.TraditionalOpenSSL
        pem = serialization.Encoding.PEM
        (folder / f"{name}.key").write_bytes(key.private_bytes(pem, form, serialization.NoEncryption()))
        if certificate is not None:
            (folder / f"{name}.crt").write_bytes(certificate.public_bytes(pem))

    def certificate(
        name: str, key: rsa.RSAPrivateKey, signer: rsa.RSAPrivateKey, *, authority: bool
    ) -> x509.Certificate:
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-ca")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(hours=1))
            .not_valid_after(now + dt.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        )
        if authority:
            usage = x509.KeyUsage(
                digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False, key_encipherment=False,
                data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
            )  # fmt: skip
            builder = builder.add_extension(usage, critical=True)
        else:
            names = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return builder.sign(signer, hashes.SHA256())

    ca, server, accounts = (rsa.generate_private_key(65537, 2048) for _ in range(3))
    written("ca", ca, certificate("test-ca", ca, ca, authority=True))
    written("server", server, certificate("server", server, ca, authority=False))
    written("sa", accounts, None)


def _server_spec(plane: ControlPlane) -> ProcessSpec:
    pki = plane.folder / "pki"
    words = (
        "kube-apiserver", f"--etcd-servers=http://127.0.0.1:{plane.ports['etcd']}", f"--secure-port={plane.ports['api']}",
        "--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--service-cluster-ip-range=10.200.0.0/24",
        f"--tls-cert-file={pki / 'server.crt'}", f"--tls-private-key-file={pki / 'server.key'}", f"--client-ca-file={pki / 'ca.crt'}",
        f"--token-auth-file={plane.folder / 'tokens.csv'}", "--authorization-mode=RBAC", "--endpoint-reconciler-type=none",
        f"--service-account-key-file={pki / 'sa.key'}", f"--service-account-signing-key-file={pki / 'sa.key'}",
        "--service-account-issuer=https://kubernetes.default.svc", f"--kubelet-certificate-authority={pki / 'ca.crt'}",
        "--kubelet-preferred-address-types=InternalIP", f"--cert-dir={plane.folder / 'api'}", "--enable-priority-and-fairness=false",
    )  # fmt: skip
    return _spec(plane, "api", words, plane.ports["api"])


def _spec(plane: ControlPlane, name: str, words: tuple[str, ...], port: int = 0, mark: str = "control") -> ProcessSpec:
    program = words[0] if words[0].startswith("/") else str(programs_dir() / words[0])
    return ProcessSpec(
        name=name,
        argv=(program, *words[1:]),
        env={**os.environ, MARK: f"{plane.folder}:{mark}"},
        cwd=ROOT,
        log_path=plane.folder / f"{name}.log",
        ready=tcp_accepts("127.0.0.1", port) if port else None,
        stop_timeout_s=5,
    )


def _last_words(folder: Path) -> str:
    return "\n".join(f"{path.name}: {path.read_text(errors='replace')[-600:]}" for path in sorted(folder.glob("*.log")))


def _end_marked(folder: Path) -> None:
    """What kubelets left: their containers' processes, by the mark that they inherit."""
    for name in NODES:
        mark = f"{MARK}={folder}:{name}".encode()
        proc.kill_until_gone(lambda mark=mark: proc.marked_processes(mark))


if __name__ == "__main__":
    import tempfile

    if missing := absent():
        sys.exit(f"absent in {programs_dir()}: {missing} (make kubernetes)")
    with tempfile.TemporaryDirectory(prefix="kubernetes-") as name, control_plane_running(Path(name)) as found:
        sys.stdout.write(f"export KUBECONFIG={found.folder / 'admin.kubeconfig'}\n")
        sys.stdout.flush()
        with contextlib.suppress(KeyboardInterrupt):
            signal.pause()
