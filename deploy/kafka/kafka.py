"""Apache Kafka without Docker: fetch its jars by their Maven coordinates and run one KRaft node of it.

    python deploy/kafka/kafka.py fetch
    python deploy/kafka/kafka.py run   --data-dir DIR [--port 9092]     in the foreground, until Ctrl-C
    python deploy/kafka/kafka.py start --data-dir DIR [--port 9092]     in the background
    python deploy/kafka/kafka.py stop  --data-dir DIR

The conformance tests and the bus benchmark import ``KafkaNode``. Needs Java 17 or newer, and Maven to fetch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
JARS = FOLDER / "lib"
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
HEAP_MEBIBYTES = 512

_JVM = (
    f"-Xms{HEAP_MEBIBYTES}m",
    f"-Xmx{HEAP_MEBIBYTES}m",
    "-XX:+UseG1GC",
    "-XX:TieredStopAtLevel=4",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dlog4j2.level=WARN",
)


class KafkaUnavailableError(RuntimeError):
    """Java, Maven or the jars are missing, or the node did not start; the message says which."""


def missing() -> str | None:
    """Why Apache Kafka cannot be started on this machine, or None if it can."""
    if shutil.which("java") is None:
        return "no java on the path"
    if not any(JARS.glob("kafka_*.jar")):
        return "the jars of Apache Kafka are not there (python deploy/kafka/kafka.py fetch)"
    return None


def fetch() -> None:
    """Put Apache Kafka and all it needs into ``lib/``; raises ``KafkaUnavailableError``."""
    if shutil.which("mvn") is None:
        raise KafkaUnavailableError("no mvn on the path")
    shutil.rmtree(JARS, ignore_errors=True)  # no jars of another version between them
    command = ["mvn", "-B", "-q", "-f", str(FOLDER / "pom.xml"), "dependency:copy-dependencies"]
    if subprocess.run(command, check=False).returncode != 0:
        raise KafkaUnavailableError("Maven could not fetch the jars, see above")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class KafkaNode:
    """One process that is broker and controller, on 127.0.0.1, with its records under ``data_dir``.

    ``kill`` and ``start`` again is a crash and a recovery: port and records stay.
    """

    def __init__(self, data_dir: Path | str, port: int = 0) -> None:
        self.data_dir = Path(data_dir).resolve()
        self.port = port or free_port()
        self._controller_port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid_file(self) -> Path:
        """Where ``start`` notes the process for ``stop``."""
        return self.data_dir / "kafka.pid"

    def start(self) -> None:
        """Format the storage if it is new, start, and wait until the node answers; raises ``KafkaUnavailableError``."""
        reason = missing()
        if reason is not None:
            raise KafkaUnavailableError(reason)
        properties = self._write_properties()
        if not (self.data_dir / "log" / "meta.properties").exists():
            self._format(properties)
        with (self.data_dir / "kafka.log").open("ab") as log:
            self._process = subprocess.Popen(
                _java(*_JVM, "kafka.Kafka", str(properties)), stdout=log, stderr=log, start_new_session=True
            )
        self.pid_file.write_text(str(self._process.pid), encoding="ascii")
        self._wait_until_ready(self._process)

    def stop(self) -> None:
        """Stop cleanly."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End at once, as a crash would."""
        self._end(signal.SIGKILL)

    def wait(self) -> int:
        """Wait for the process to end; returns its exit status."""
        return self._process.wait() if self._process is not None else 0

    def _end(self, with_signal: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(with_signal)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self.pid_file.unlink(missing_ok=True)

    def _write_properties(self) -> Path:
        controller = f"127.0.0.1:{self._controller_port}"
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.voters": f"1@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap_servers},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap_servers}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.data_dir / "log"),
            "num.partitions": "1",
            "offsets.topic.num.partitions": "1",
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "group.min.session.timeout.ms": "1000",
        }
        self.data_dir.mkdir(parents=True, exist_ok=True)
        path = self.data_dir / "server.properties"
        path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
        return path

    def _format(self, properties: Path) -> None:
        tool = "kafka.tools.StorageTool"
        made = subprocess.run(_java("-Xmx128m", tool, "random-uuid"), check=False, capture_output=True, text=True)
        cluster_id = made.stdout.strip().splitlines()[-1] if made.returncode == 0 else ""
        formatted = subprocess.run(
            _java("-Xmx128m", tool, "format", "-t", cluster_id, "-c", str(properties)),
            check=False,
            capture_output=True,
            text=True,
        )
        if formatted.returncode != 0:
            raise KafkaUnavailableError(f"the storage could not be formatted: {formatted.stdout}{formatted.stderr}")

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _answers(self.port):
            if process.poll() is not None:
                raise KafkaUnavailableError(f"the node ended with {process.returncode}, see {self.data_dir}/kafka.log")
            if time.monotonic() > deadline:
                self.kill()
                raise KafkaUnavailableError(f"the node was not ready in {START_TIMEOUT_S:.0f} s")
            time.sleep(0.1)


def _java(*arguments: str) -> list[str]:
    java_home = os.environ.get("JAVA_HOME")
    java = str(Path(java_home) / "bin" / "java") if java_home else "java"
    return [java, "-cp", f"{JARS}/*", *arguments]


def _answers(port: int) -> bool:
    """Whether a broker answers an ApiVersions request (version 0) there: it listens only when it is unfenced and ready."""
    request = (18).to_bytes(2, "big") + bytes(2) + (1).to_bytes(4, "big") + (5).to_bytes(2, "big") + b"probe"
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0) as probe:
        probe.sendall(len(request).to_bytes(4, "big") + request)
        return len(probe.recv(4)) == 4
    return False


def _stop_other(data_dir: Path) -> None:
    try:
        pid = int((data_dir / "kafka.pid").read_text(encoding="ascii"))
        os.kill(pid, signal.SIGTERM)
    except (FileNotFoundError, ProcessLookupError):
        print(f"no node runs on {data_dir}")
    (data_dir / "kafka.pid").unlink(missing_ok=True)


def _tell(node: KafkaNode) -> None:
    print(f"Apache Kafka listens on {node.bootstrap_servers}", flush=True)


def _run(node: KafkaNode) -> int:
    """Start the node and wait for it to end, or end it when told to; returns the exit code."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        node.start()
        _tell(node)
        return node.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        node.stop()


def main() -> int:
    """The command line; returns the exit code."""
    parser = argparse.ArgumentParser(description="Apache Kafka without Docker.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch the jars with Maven")
    for name, text in (("run", "run in the foreground"), ("start", "run in the background"), ("stop", "stop it")):
        command = commands.add_parser(name, help=text)
        command.add_argument("--data-dir", type=Path, required=True)
        if name != "stop":
            command.add_argument("--port", type=int, default=9092)
    options = parser.parse_args()
    try:
        if options.command == "fetch":
            fetch()
        elif options.command == "stop":
            _stop_other(options.data_dir)
        elif options.command == "run":
            return _run(KafkaNode(options.data_dir, options.port))
        else:
            node = KafkaNode(options.data_dir, options.port)
            node.start()
            _tell(node)
    except KafkaUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
