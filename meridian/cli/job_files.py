"""Job files: YAML (or JSON) in the shape of the API's job, with the working directory made absolute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from meridian.errors import InvalidArgumentError


def read_job_file(path: Path) -> dict[str, Any]:
    """The job that a file describes. ``working_dir`` is relative to the file and defaults to its folder.

    InvalidArgumentError names the place where the file is no valid YAML mapping. What the fields may hold is checked by
    the gateway, which names the field.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise InvalidArgumentError(f"{path} is not a text file in UTF-8") from None
    except (
        yaml.YAMLError,
        ValueError,
        RecursionError,
    ) as error:  # a day that is in no calendar, lists in lists without end
        raise InvalidArgumentError(f"{path} is not valid YAML: {error}") from None
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"{path}: a job file is a mapping of fields to values")
    working_dir = content.get("working_dir", ".")
    if not isinstance(working_dir, str):
        raise InvalidArgumentError(f"{path}: working_dir is a path")
    content["working_dir"] = str((path.resolve().parent / working_dir).resolve())
    return content
