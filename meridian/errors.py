"""One base class for every error that may reach a person: it carries what RFC 9457 problem details need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class FieldError:
    """What is wrong with one field of a request: ``pointer`` is a JSON pointer (RFC 6901) into the body."""

    pointer: str
    detail: str


class MeridianError(Exception):
    """Base of all expected errors: ``code`` is stable for programs, ``status`` the HTTP status, ``title`` for people."""

    code: ClassVar[str] = "INTERNAL"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"

    def __init__(self, detail: str, *, errors: tuple[FieldError, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.errors = errors

    def problem(self, instance: str | None = None, correlation_id: str | None = None) -> dict[str, Any]:
        """The error as an RFC 9457 ``application/problem+json`` object."""
        body: dict[str, Any] = {
            "type": f"urn:meridian:error:{self.code.lower().replace('_', '-')}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
        }
        if instance is not None:
            body["instance"] = instance
        if correlation_id is not None:
            body["correlationId"] = correlation_id
        if self.errors:
            body["errors"] = [{"pointer": error.pointer, "detail": error.detail} for error in self.errors]
        return body


class InvalidArgumentError(MeridianError):
    """The request is malformed or breaks a rule that the caller can mend."""

    code = "INVALID_ARGUMENT"
    status = 422
    title = "Invalid argument"


class MalformedRequestError(MeridianError):
    """The body could not be read at all (no JSON, wrong media type)."""

    code = "MALFORMED_REQUEST"
    status = 400
    title = "Malformed request"


class UnauthenticatedError(MeridianError):
    """No token, or one that is not valid (any more)."""

    code = "UNAUTHENTICATED"
    status = 401
    title = "Not authenticated"


class PermissionDeniedError(MeridianError):
    """The caller is known but may not do this."""

    code = "PERMISSION_DENIED"
    status = 403
    title = "Permission denied"


class NotFoundError(MeridianError):
    """The named thing does not exist, or not for this tenant."""

    code = "NOT_FOUND"
    status = 404
    title = "Not found"


class ConflictError(MeridianError):
    """The request contradicts the present state."""

    code = "CONFLICT"
    status = 409
    title = "Conflict"


class PreconditionFailedError(MeridianError):
    """What the caller has seen is not what is there now."""

    code = "PRECONDITION_FAILED"
    status = 412
    title = "Precondition failed"


class ResourceExhaustedError(MeridianError):
    """A quota or rate limit is used up."""

    code = "RESOURCE_EXHAUSTED"
    status = 429
    title = "Too many requests"


class UnavailableError(MeridianError):
    """A part that is needed does not answer at present; the same call may succeed later."""

    code = "UNAVAILABLE"
    status = 503
    title = "Unavailable"


class ContractError(MeridianError):
    """A message does not keep its contract: unknown type, undecodable body, missing attribute."""

    code = "CONTRACT_VIOLATION"
    status = 422
    title = "Contract violation"


class ConfigurationError(MeridianError):
    """A setting is missing or wrong; the process cannot start."""

    code = "CONFIGURATION"
    status = 500
    title = "Configuration error"
