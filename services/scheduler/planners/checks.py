"""Checks of the planners' inputs: a planner that computes with a NaN gives a plausible and wrong plan."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from services.scheduler.core.errors import PolicyError

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


def numbers(
    field: str,
    values: ArrayLike,
    shape: tuple[int | None, ...],
    *,
    low: float = -np.inf,
    high: float = np.inf,
    infinite: bool = False,
) -> FloatArray:
    """``values`` as float64 of ``shape`` (None: any length), each in [low, high].

    Raises `PolicyError` naming the field and the first bad place: wrong shape, NaN, infinite (unless allowed), out of range.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise PolicyError(f"{field}: not an array of numbers ({error})") from error
    if array.size == 0 and array.ndim < len(shape):
        array = array.reshape([0 if length is None else length for length in shape])
    if array.ndim != len(shape) or any(
        want is not None and want != got for want, got in zip(shape, array.shape, strict=True)
    ):
        raise PolicyError(f"{field}: shape {array.shape}, expected {_form(shape)}")
    if array.size:
        least, most = np.minimum.reduce(array, axis=None), np.maximum.reduce(array, axis=None)
        if low <= least and most <= high and (infinite or -np.inf < least <= most < np.inf):
            return array
    _refuse(field, array, np.isnan(array), "NaN")
    if not infinite:
        _refuse(field, array, np.isinf(array), "infinite")
    _refuse(field, array, (array < low) | (array > high), f"outside [{low:g}, {high:g}]")
    return array


def whole_numbers(field: str, values: ArrayLike, shape: tuple[int | None, ...], *, low: int, high: int) -> IntArray:
    """As `numbers`, and every value a whole number; int64."""
    array = numbers(field, values, shape, low=low, high=high)
    _refuse(field, array, array != np.rint(array), "not a whole number")
    return array.astype(np.int64)


def flags(field: str, values: ArrayLike, shape: tuple[int | None, ...]) -> BoolArray:
    """As `numbers`, of truth values."""
    return whole_numbers(field, values, shape, low=0, high=1).astype(np.bool_)


def number(field: str, value: float, *, low: float = -np.inf, high: float = np.inf) -> float:
    """One finite number in [low, high]; raises `PolicyError` naming the field."""
    return float(numbers(field, value, (), low=low, high=high))


def _form(shape: tuple[int | None, ...]) -> str:
    return "(" + ", ".join("any" if length is None else str(length) for length in shape) + ")"


def _refuse(field: str, array: FloatArray, bad: BoolArray, reason: str) -> None:
    if not bad.any():
        return
    place = tuple(int(index) for index in np.argwhere(bad)[0]) if array.ndim else ()
    where = f"[{', '.join(map(str, place))}]" if place else ""
    raise PolicyError(f"{field}{where}: {array[place]:g} is {reason}" if reason != "NaN" else f"{field}{where}: is NaN")
