"""How the agent reaches a cluster's API server: a kubeconfig, a server with token and authority, or the pod's service account.

Sources: "Organizing Cluster Access Using kubeconfig Files" and "Accessing the Kubernetes API from a Pod" in the documentation of
Kubernetes. Programs that make credentials (``exec``) and servers whose certificate is not looked at are refused.
"""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from meridian.errors import ConfigurationError

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Access:
    """Where the API server is and who we are there. ``token_path`` is read anew for every call: tokens of pods are renewed.
    Certificates and keys are PEM texts."""

    server: str
    authority: str = ""
    token: str = ""
    token_path: Path | None = None
    certificate: str = ""
    key: str = ""

    def bearer(self) -> str:
        """The token; empty: none.

        :raises ConfigurationError: its file cannot be read.
        """
        if self.token_path is None:
            return self.token
        return _text(self.token_path, "token_path").strip()

    def tls(self) -> ssl.SSLContext:
        """What the server's certificate is checked against, and our own.

        :raises ConfigurationError: a certificate or key that is none.
        """
        try:
            context = ssl.create_default_context(cadata=self.authority or None)
            if self.certificate:
                # The library takes a client's certificate from a file only.
                with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:
                    file.write(f"{self.certificate}\n{self.key}")
                    file.flush()
                    context.load_cert_chain(file.name)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigurationError(f"kubernetes: certificate of the authority or the client: {error}") from None
        return context


def access_of(
    *,
    kubeconfig: Path | None = None,
    context: str = "",
    server: str = "",
    token_path: Path | None = None,
    ca_path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    account: Path = SERVICE_ACCOUNT,
) -> Access:
    """The first that is given: ``kubeconfig``, ``server``, the service account of the pod in which the agent runs.

    :raises ConfigurationError: names the field that is missing or wrong.
    """
    if kubeconfig is not None:
        return _checked(_of_kubeconfig(kubeconfig, context), "kubeconfig: server")
    if server:
        authority = _text(ca_path, "ca_path") if ca_path is not None else ""
        found = Access(server.rstrip("/"), authority, token_path=token_path)
        found.bearer()
        return _checked(found, "server")
    known = os.environ if environment is None else environment
    host, port = known.get("KUBERNETES_SERVICE_HOST", ""), known.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise ConfigurationError(
            "domain.own_scheduler: neither kubeconfig nor server is given, and the agent does not run in a pod"
            " (KUBERNETES_SERVICE_HOST)"
        )
    name = f"[{host}]" if ":" in host else host
    found = Access(f"https://{name}:{port}", _text(account / "ca.crt", "ca.crt"), token_path=account / "token")
    found.bearer()
    return _checked(found, "KUBERNETES_SERVICE_HOST")


def _checked(access: Access, field: str) -> Access:
    """Credentials go over TLS, or stay on this machine."""
    parts = urlsplit(access.server)
    if parts.scheme == "https" and parts.hostname:
        return access
    if parts.scheme == "http" and parts.hostname and _is_loopback(parts.hostname):
        return access
    raise ConfigurationError(
        f"domain.own_scheduler.{field}: {access.server!r} is neither https nor http on this machine (127.0.0.1, localhost)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def _of_kubeconfig(path: Path, context: str) -> Access:
    try:
        content = yaml.safe_load(_text(path, "kubeconfig"))
    except yaml.YAMLError as error:
        raise ConfigurationError(f"domain.own_scheduler.kubeconfig: {path}: {error}") from None
    if not isinstance(content, dict):
        raise ConfigurationError(f"domain.own_scheduler.kubeconfig: {path} is no mapping")
    chosen = context or str(content.get("current-context") or "")
    if not chosen:
        raise ConfigurationError(f"domain.own_scheduler.context: {path} has no current-context, and none is named")
    joint = _named(path, content, "contexts", "context", chosen)
    cluster = _named(path, content, "clusters", "cluster", str(joint.get("cluster", "")))
    user = _named(path, content, "users", "user", str(joint.get("user", "")))
    if cluster.get("insecure-skip-tls-verify"):
        raise ConfigurationError(f"domain.own_scheduler.kubeconfig: {path}: insecure-skip-tls-verify is not supported")
    for name in ("exec", "auth-provider", "username"):
        if user.get(name):
            raise ConfigurationError(
                f"domain.own_scheduler.kubeconfig: {path}: users: {name} is not supported; token, tokenFile or a client"
                " certificate is"
            )
    token_file = user.get("tokenFile")
    return Access(
        str(cluster.get("server", "")).rstrip("/"),
        _pem(path, cluster, "certificate-authority"),
        token=str(user.get("token") or ""),
        token_path=path.parent / token_file if token_file else None,
        certificate=_pem(path, user, "client-certificate"),
        key=_pem(path, user, "client-key"),
    )


def _named(path: Path, content: Mapping[str, Any], plural: str, singular: str, name: str) -> Mapping[str, Any]:
    listed = content.get(plural)
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and item.get("name") == name and isinstance(item.get(singular), dict):
            return item[singular]  # type: ignore[no-any-return]
    raise ConfigurationError(f"domain.own_scheduler.kubeconfig: {path}: {plural} has no {name!r}")


def _pem(path: Path, section: Mapping[str, Any], name: str) -> str:
    data, file = section.get(f"{name}-data"), section.get(name)
    if data:
        try:
            return base64.b64decode(str(data), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise ConfigurationError(f"domain.own_scheduler.kubeconfig: {path}: {name}-data: {error}") from None
    return _text(path.parent / str(file), name) if file else ""


def _text(path: Path, field: str) -> str:
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"domain.own_scheduler.{field}: {path}: {error}") from None
