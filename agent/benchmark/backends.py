"""What the probe runs: the same four kinds of work in numpy on a processor, and in torch where it is installed."""

from __future__ import annotations

import platform
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from agent.benchmark import transformer

LOOPBACK_CHUNK_BYTES = 1 << 20


class Backend(Protocol):
    """Work on one device; each callable returns when the work is done."""

    name: str
    software: str
    precisions: tuple[str, ...]

    def chip(self) -> str:
        """The name of the device as its maker writes it."""
        ...

    def matrix_product(self, size: int, precision: str) -> Callable[[], None]:
        """A product of two (size, size) matrices: 2 size**3 operations."""
        ...

    def copy(self, size_bytes: int) -> Callable[[], None]:
        """A copy within the device's memory: reads and writes ``size_bytes``."""
        ...

    def transfer(self, size_bytes: int) -> tuple[str, Callable[[], None]] | None:
        """A way to the outside of the device and a transfer over it; None when there is none."""
        ...

    def training_step(self, batch: int, length: int, width: int, precision: str) -> Callable[[], None]:
        """Forward and backward pass of a transformer layer over batch x length tokens."""
        ...


class NumpyBackend:
    """The processor, through the BLAS that numpy was built with."""

    name = "cpu"
    precisions: tuple[str, ...] = ("fp32", "fp64")
    _TYPES: dict[str, type[np.floating]] = {"fp32": np.float32, "fp64": np.float64}  # noqa: RUF012

    def __init__(self) -> None:
        self.software = f"numpy {np.__version__}, Python {platform.python_version()}"
        self._draws = np.random.default_rng(0)

    def chip(self) -> str:
        """The processor's name; the machine's architecture where none is told."""
        try:
            lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        names = [line.partition(":")[2].strip() for line in lines if line.lower().startswith("model name")]
        return names[0] if names else platform.processor() or platform.machine()

    def matrix_product(self, size: int, precision: str) -> Callable[[], None]:
        """Through numpy's BLAS."""
        kind = self._TYPES[precision]
        a, b = (self._draws.standard_normal((size, size)).astype(kind) for _ in range(2))
        out = np.empty((size, size), kind)

        def work() -> None:
            np.matmul(a, b, out=out)

        return work

    def copy(self, size_bytes: int) -> Callable[[], None]:
        """One array onto another."""
        source = np.ones(size_bytes // 8)
        target = np.zeros_like(source)

        def work() -> None:
            np.copyto(target, source)

        return work

    def transfer(self, size_bytes: int) -> tuple[str, Callable[[], None]] | None:
        """TCP over the loopback interface, one stream."""
        payload = bytes(LOOPBACK_CHUNK_BYTES)
        chunks = max(1, size_bytes // LOOPBACK_CHUNK_BYTES)

        def work() -> None:
            with socket.create_server(("127.0.0.1", 0)) as server:
                reader = threading.Thread(target=_drain, args=(server,))
                reader.start()
                with socket.create_connection(server.getsockname()) as connection:
                    for _ in range(chunks):
                        connection.sendall(payload)
                reader.join()

        return "loopback", work

    def training_step(self, batch: int, length: int, width: int, precision: str) -> Callable[[], None]:
        """The layer of ``transformer``."""
        kind = self._TYPES[precision]
        weights = transformer.initial(width, kind, self._draws)
        x = self._draws.standard_normal((batch, length, width)).astype(kind)

        def work() -> None:
            transformer.step(x, weights)

        return work


def _drain(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while connection.recv(LOOPBACK_CHUNK_BYTES):
            pass


class TorchBackend:
    """A device of torch: ``cpu`` or ``cuda``."""

    def __init__(self, torch: Any, device: str) -> None:
        """``torch`` is the imported module; ``device`` one that it has."""
        self._torch = torch
        self._cuda = device == "cuda"
        self.name = device
        self.software = f"torch {torch.__version__}" + (f", CUDA {torch.version.cuda}" if self._cuda else "")
        self.precisions: tuple[str, ...] = ("fp32", "tf32", "fp16", "bf16") if self._cuda else ("fp32", "bf16")

    def chip(self) -> str:
        """As the driver names it."""
        return str(self._torch.cuda.get_device_name()) if self._cuda else NumpyBackend().chip()

    def matrix_product(self, size: int, precision: str) -> Callable[[], None]:
        """`torch.matmul`; single precision with or without TF32."""
        torch = self._torch
        a, b = (torch.randn(size, size, device=self.name).to(self._type(precision)) for _ in range(2))
        out = torch.empty_like(a)

        def work() -> None:
            self._allow_tf32(precision)
            torch.matmul(a, b, out=out)
            self._wait()

        return work

    def copy(self, size_bytes: int) -> Callable[[], None]:
        """One tensor onto another."""
        source = self._torch.ones(size_bytes // 4, device=self.name)
        target = self._torch.zeros_like(source)

        def work() -> None:
            target.copy_(source)
            self._wait()

        return work

    def transfer(self, size_bytes: int) -> tuple[str, Callable[[], None]] | None:
        """To a second device of the node where there is one, else from pinned memory of the host."""
        torch = self._torch
        if not self._cuda:
            return NumpyBackend().transfer(size_bytes)
        if torch.cuda.device_count() > 1:
            source = torch.ones(size_bytes // 4, device="cuda:0")
            target = torch.zeros(size_bytes // 4, device="cuda:1")
            name = "interconnect"
        else:
            source = torch.ones(size_bytes // 4).pin_memory()
            target = torch.zeros(size_bytes // 4, device="cuda")
            name = "host_link"

        def work() -> None:
            target.copy_(source, non_blocking=True)
            for number in range(torch.cuda.device_count()):
                torch.cuda.synchronize(number)

        return name, work

    def training_step(self, batch: int, length: int, width: int, precision: str) -> Callable[[], None]:
        """An encoder layer of torch in ``precision``, without dropout, and its gradients."""
        torch = self._torch
        layer = torch.nn.TransformerEncoderLayer(
            width, max(1, width // 64), 4 * width, dropout=0.0, batch_first=True, device=self.name
        ).to(self._type(precision))
        x = torch.randn(batch, length, width, device=self.name).to(self._type(precision))

        def work() -> None:
            self._allow_tf32(precision)
            layer.zero_grad(set_to_none=True)
            layer(x).square().mean().backward()
            self._wait()

        return work

    def _type(self, precision: str) -> Any:
        names = {"fp64": "float64", "fp32": "float32", "tf32": "float32", "fp16": "float16", "bf16": "bfloat16"}
        return getattr(self._torch, names[precision])

    def _allow_tf32(self, precision: str) -> None:
        if self._cuda:
            self._torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"

    def _wait(self) -> None:
        if self._cuda:
            self._torch.cuda.synchronize()


def backend(device: str) -> Backend | str:
    """The backend for ``device`` ("auto", "cpu", "cuda"), or why there is none."""
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        return NumpyBackend() if device != "cuda" else "torch is not installed, and without it there is no CUDA"
    cuda = bool(torch.cuda.is_available())
    if device == "cuda" and not cuda:
        return "torch finds no CUDA device"
    return TorchBackend(torch, "cuda" if cuda and device != "cpu" else "cpu")
