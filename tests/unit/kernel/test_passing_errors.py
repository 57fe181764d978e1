"""Which errors of the database pass when the work is done again, and which would only repeat."""

from __future__ import annotations

import asyncpg
import pytest
import sqlalchemy as sa

from meridian.database import is_passing


def wrapped(kind: type[sa.exc.DBAPIError], original: Exception, *, invalidated: bool = False) -> sa.exc.DBAPIError:
    """As SQLAlchemy raises it: the driver's error inside an adapter's error inside a DBAPIError."""
    adapter = Exception(str(original))
    adapter.__cause__ = original
    return kind("SELECT 1", {}, adapter, connection_invalidated=invalidated)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionRefusedError(),
        ConnectionResetError(),
        TimeoutError(),
        OSError("network is unreachable"),
        wrapped(sa.exc.DBAPIError, asyncpg.DeadlockDetectedError("40P01")),
        wrapped(sa.exc.DBAPIError, asyncpg.SerializationError("40001")),
        wrapped(sa.exc.DBAPIError, asyncpg.AdminShutdownError("57P01")),
        wrapped(sa.exc.DBAPIError, asyncpg.CannotConnectNowError("57P03")),
        wrapped(sa.exc.OperationalError, asyncpg.TooManyConnectionsError("53300")),
        wrapped(sa.exc.InterfaceError, asyncpg.InterfaceError("connection is closed")),
        wrapped(sa.exc.ProgrammingError, asyncpg.UndefinedTableError("42P01"), invalidated=True),
        wrapped(sa.exc.OperationalError, RuntimeError("no state is known")),
        wrapped(sa.exc.NotSupportedError, asyncpg.InvalidCachedStatementError("0A000")),
        asyncpg.AdminShutdownError("57P01"),
        asyncpg.InterfaceError("connection is closed"),
    ],
    ids=repr,
)
def test_passes(error: BaseException) -> None:
    assert is_passing(error)


@pytest.mark.parametrize(
    "error",
    [
        ValueError("bad input"),
        KeyError("x"),
        wrapped(sa.exc.IntegrityError, asyncpg.UniqueViolationError("23505")),
        wrapped(sa.exc.ProgrammingError, asyncpg.UndefinedTableError("42P01")),
        wrapped(sa.exc.DBAPIError, asyncpg.NumericValueOutOfRangeError("22003")),
        wrapped(sa.exc.OperationalError, asyncpg.InvalidPasswordError("28P01")),
        wrapped(sa.exc.NotSupportedError, asyncpg.FeatureNotSupportedError("0A000")),
        asyncpg.UndefinedTableError("42P01"),
        asyncpg.DataError("invalid input for query argument $1"),
    ],
    ids=repr,
)
def test_does_not_pass(error: BaseException) -> None:
    assert not is_passing(error)
