"""The broker put together: storage, coordinator and handlers behind one listening socket, and the upkeep in between."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import struct
import uuid
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path

from meridian.embedded.broker.admin_handlers import AdminHandlers
from meridian.embedded.broker.compaction import MIN_DIRTY_BYTES, compact, due
from meridian.embedded.broker.connection import Connection, Reply
from meridian.embedded.broker.coordinator import Coordinator
from meridian.embedded.broker.errors import BrokerError, ErrorCode, MalformedFrameError
from meridian.embedded.broker.group_handlers import GroupHandlers
from meridian.embedded.broker.log import PartitionLog
from meridian.embedded.broker.requests import Handler, Request
from meridian.embedded.broker.schemas import APIS, Api, ApiKey
from meridian.embedded.broker.stream_handlers import Address, StreamHandlers, now_ms
from meridian.embedded.broker.topics import TopicStore
from meridian.embedded.broker.wire import INT16, INT32, NULLABLE_STRING, Message, Reader
from meridian.errors import ConfigurationError

PRODUCER_ID_BLOCK = 1000
WILDCARDS = frozenset({"", "0.0.0.0", "::"})
OFFSET_RETENTION_MS = 7 * 24 * 3600 * 1000

LENGTH_BYTES = 4
_LENGTH_AND_CORRELATION = struct.Struct(">Ii")
_read_int16, _read_int32 = INT16.at(0, False)[0], INT32.at(0, False)[0]
_read_client_id = NULLABLE_STRING.at(0, False)[0]
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """How the broker behaves.

    ``flush_interval_s``: acknowledged records are on the disk at the latest so long after; they survive the death of the
    process at once, that of the machine only then. 0 means before they are acknowledged.
    """

    advertised_host: str | None = None
    flush_interval_s: float = 0.2
    default_partitions: int = 1
    auto_create_topics: bool = True
    max_request_bytes: int = 100 << 20
    initial_rebalance_delay_s: float = 0.02
    upkeep_interval_s: float = 30.0
    min_compaction_bytes: int = MIN_DIRTY_BYTES


class Broker:
    """A single-node broker on ``host:port`` (port 0: a free one) with its records under ``data_dir``."""

    def __init__(
        self, data_dir: Path | str, host: str = "127.0.0.1", port: int = 0, settings: BrokerSettings | None = None
    ) -> None:
        self.data_dir = Path(data_dir)
        self.host = host
        self.port = port
        self.settings = settings or BrokerSettings()
        self._connections: set[Connection] = set()
        self._upkeep: list[asyncio.Task[None]] = []
        self._server: asyncio.Server | None = None
        self._identity: Message = {}
        self._lock: int | None = None

    @property
    def bootstrap_servers(self) -> str:
        """What clients connect to."""
        return f"{self._address().host}:{self.port}"

    async def start(self) -> None:
        """Recover what is on disk and listen; raises ``ConfigurationError`` if the folder or the port is taken."""
        if self.host in WILDCARDS and self.settings.advertised_host is None:
            raise ConfigurationError(
                f"listening on {self.host} needs an advertised host: clients cannot connect to that"
            )
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._take_folder()
        self._identity = self._read_identity()
        self.topics = TopicStore(self.data_dir)
        self.topics.open()
        loop = asyncio.get_running_loop()
        self.coordinator = Coordinator(self.data_dir / "groups.journal", loop, self.settings.initial_rebalance_delay_s)
        self.coordinator.open()
        self._handlers = self._wire()
        try:
            self._server = await loop.create_server(
                lambda: Connection(self._serve, self.settings.max_request_bytes, self._connections),
                self.host,
                self.port,
                backlog=512,
            )
        except OSError as error:
            await self.stop()
            raise ConfigurationError(f"cannot listen on {self.host}:{self.port}: {error}") from error
        self.port = self._server.sockets[0].getsockname()[1]
        self._upkeep = [asyncio.create_task(self._keep_tidy())]
        if self.settings.flush_interval_s > 0:
            self._upkeep.append(asyncio.create_task(self._keep_flushed()))

    async def stop(self) -> None:
        """Close all connections and save everything, so that the next start need not scan."""
        for task in self._upkeep:
            task.cancel()
        await asyncio.gather(*self._upkeep, return_exceptions=True)
        if self._server is not None:
            self._server.close()
        for connection in tuple(self._connections):
            connection.close()
        if self._server is not None:
            await self._server.wait_closed()
            self._server = None
        self.coordinator.close()
        self.topics.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # --- requests ----------------------------------------------------------------------------------------------------

    def _wire(self) -> dict[ApiKey, Handler]:
        sync = _synced if self.settings.flush_interval_s <= 0 else None
        streams = StreamHandlers(
            self.topics,
            address=self._address,
            cluster_id=self._identity["cluster_id"],
            sync=sync,
            next_producer_id=self._next_producer_id,
            default_partitions=self.settings.default_partitions,
            auto_create_topics=self.settings.auto_create_topics,
        )
        groups = GroupHandlers(self.coordinator, self.topics, self._address, now_ms, sync)
        admin = AdminHandlers(
            self.topics,
            self.coordinator.forget_topic,
            self.settings.default_partitions,
            {
                "auto.create.topics.enable": str(self.settings.auto_create_topics).lower(),
                "default.replication.factor": "1",
                "num.partitions": str(self.settings.default_partitions),
                "socket.request.max.bytes": str(self.settings.max_request_bytes),
            },
        )
        return {
            ApiKey.PRODUCE: streams.produce,
            ApiKey.FETCH: streams.fetch,
            ApiKey.LIST_OFFSETS: streams.list_offsets,
            ApiKey.METADATA: streams.metadata,
            ApiKey.INIT_PRODUCER_ID: streams.init_producer_id,
            ApiKey.API_VERSIONS: lambda _request: _advertised(ErrorCode.NONE),
            ApiKey.OFFSET_COMMIT: groups.commit,
            ApiKey.OFFSET_FETCH: groups.fetch_offsets,
            ApiKey.FIND_COORDINATOR: groups.find_coordinator,
            ApiKey.JOIN_GROUP: groups.join,
            ApiKey.HEARTBEAT: groups.heartbeat,
            ApiKey.LEAVE_GROUP: groups.leave,
            ApiKey.SYNC_GROUP: groups.sync,
            ApiKey.DESCRIBE_GROUPS: groups.describe,
            ApiKey.LIST_GROUPS: groups.list,
            ApiKey.CREATE_TOPICS: admin.create_topics,
            ApiKey.DELETE_TOPICS: admin.delete_topics,
            ApiKey.DELETE_RECORDS: admin.delete_records,
            ApiKey.DESCRIBE_CONFIGS: admin.describe_configs,
        }

    def _serve(self, data: memoryview, peer: str) -> Reply | Awaitable[Reply]:
        reader = Reader(data)
        key, version, correlation = _read_int16(reader), _read_int16(reader), _read_int32(reader)
        client_id = _read_client_id(reader) or ""
        api = APIS.get(key)
        if api is None:
            raise MalformedFrameError(f"request {key} is not served (client {client_id!r})")
        if not api.serves(version):
            if api.key is ApiKey.API_VERSIONS:  # the one request a newer client may get wrong: told in version 0
                return _reply(api, 0, correlation, _advertised(ErrorCode.UNSUPPORTED_VERSION))
            raise MalformedFrameError(f"{api.key.name} version {version} is not served (client {client_id!r})")
        if version >= api.flexible_from:
            reader.skip_tags()
        answer = self._handlers[api.key](Request(api.read_request(reader, version), version, client_id, peer))
        if answer is None or isinstance(answer, dict):
            return None if answer is None else _reply(api, version, correlation, answer)
        return _reply_later(api, version, correlation, answer)

    def _address(self) -> Address:
        return Address(self.settings.advertised_host or self.host, self.port)

    # --- upkeep ------------------------------------------------------------------------------------------------------

    async def _keep_flushed(self) -> None:
        while True:
            await asyncio.sleep(self.settings.flush_interval_s)
            copies = [copy for log in self.topics.logs() if log.dirty for copy in log.unsynced_copies()]
            copies += self.coordinator.journal.unsynced_copies()
            if copies:
                try:
                    await _synced(copies)
                except OSError:
                    _logger.exception("what was acknowledged may not have reached the disk")

    async def _keep_tidy(self) -> None:
        while True:
            await asyncio.sleep(self.settings.upkeep_interval_s)
            await self.tidy()

    async def tidy(self) -> None:
        """Apply retention and compaction, as is done every ``upkeep_interval_s``."""
        moment_ms = now_ms()
        self.coordinator.expire_offsets(moment_ms - OFFSET_RETENTION_MS)
        for topic in list(self.topics):
            for log in topic.partitions:
                try:
                    log.expire(moment_ms)
                    if due(log, self.settings.min_compaction_bytes):
                        await self._compact(log, moment_ms)
                except (OSError, BrokerError):
                    _logger.exception("%s: not tidied, is tried again", log.directory)

    async def _compact(self, log: PartitionLog, moment_ms: int) -> None:
        log.roll()
        complete = log.segments[:-1]
        oldest_tombstone_ms = moment_ms - log.config.tombstone_retention_ms
        merged = await asyncio.to_thread(compact, complete, log.start_offset, oldest_tombstone_ms)
        log.replace(complete, merged)

    # --- identity ----------------------------------------------------------------------------------------------------

    def _take_folder(self) -> None:
        """Two brokers on one folder would destroy it: hold a lock while running (freed by the system if we die)."""
        import fcntl

        self._lock = os.open(self.data_dir / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            self._lock = None
            raise ConfigurationError(f"{self.data_dir} is in use by another broker") from error

    def _read_identity(self) -> Message:
        path = self.data_dir / "broker.json"
        try:
            identity: Message = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            identity = {"cluster_id": str(uuid.uuid4()), "producer_ids_given": 0}
        # Ids up to the end of the reserved block may have been given out before a crash: begin behind it.
        self._producer_id = identity["producer_ids_given"]
        return identity

    def _next_producer_id(self) -> int:
        if self._producer_id >= self._identity["producer_ids_given"]:
            self._identity["producer_ids_given"] = self._producer_id + PRODUCER_ID_BLOCK
            path = self.data_dir / "broker.json"
            temporary = path.with_suffix(".tmp")
            temporary.write_text(json.dumps(self._identity), encoding="utf-8")
            temporary.replace(path)
        self._producer_id += 1
        return int(self._producer_id - 1)


async def _synced(descriptors: list[int]) -> None:
    """Force the files to disk, off the event loop, and close the descriptors."""

    def sync() -> None:
        for descriptor in descriptors:
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    await asyncio.get_running_loop().run_in_executor(None, sync)


def _advertised(error_code: ErrorCode) -> Message:
    return {
        "error_code": error_code,
        "api_keys": [
            {"api_key": api.key, "min_version": api.min_version, "max_version": api.max_version}
            for api in APIS.values()
        ],
    }


def _reply(api: Api, version: int, correlation: int, answer: Message) -> bytearray:
    out = bytearray(_LENGTH_AND_CORRELATION.pack(0, correlation))
    if api.tagged_response_header(version):
        out.append(0)
    api.write_response(out, answer, version)
    _LENGTH_AND_CORRELATION.pack_into(out, 0, len(out) - LENGTH_BYTES, correlation)  # once its length is known
    return out


async def _reply_later(api: Api, version: int, correlation: int, answer: Awaitable[Message | None]) -> Reply:
    message = await answer
    return None if message is None else _reply(api, version, correlation, message)
