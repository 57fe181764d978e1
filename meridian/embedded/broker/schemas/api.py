"""What one API of the protocol is: number, advertised versions, first flexible version, request and response."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from meridian.embedded.broker.wire import Message, Reader, Struct


class ApiKey(IntEnum):
    """Numbers of the requests, from the protocol guide."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    DESCRIBE_CONFIGS = 32


@dataclass(frozen=True, slots=True)
class Api:
    """One request and its response over the versions ``min_version``..``max_version``."""

    key: ApiKey
    min_version: int
    max_version: int
    flexible_from: int
    request: Struct
    response: Struct

    def serves(self, version: int) -> bool:
        """Whether this version is advertised."""
        return self.min_version <= version <= self.max_version

    def read_request(self, reader: Reader, version: int) -> Message:
        """The request body at the reader's position; raises ``MalformedFrameError``."""
        message: Message = self.request.at(version, version >= self.flexible_from)[0](reader)
        return message

    def write_request(self, out: bytearray, message: Message, version: int) -> None:
        """Append the request body (what a client does)."""
        self.request.at(version, version >= self.flexible_from)[1](out, message)

    def read_response(self, reader: Reader, version: int) -> Message:
        """The response body, header excluded (what a client does)."""
        message: Message = self.response.at(version, version >= self.flexible_from)[0](reader)
        return message

    def write_response(self, out: bytearray, message: Message, version: int) -> None:
        """Append the response body."""
        self.response.at(version, version >= self.flexible_from)[1](out, message)

    def tagged_response_header(self, version: int) -> bool:
        """Whether the response header ends with tagged fields; that of ApiVersions never does (KIP-511)."""
        return version >= self.flexible_from and self.key is not ApiKey.API_VERSIONS
