"""Job files: YAML (or JSON) in the shape of the API's job, with the working directory made absolute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from meridian.cli.yaml_files import read_yaml
from meridian.errors import InvalidArgumentError


def read_job_file(path: Path) -> dict[str, Any]:
    """The job that a file describes. ``working_dir`` is relative to the file and defaults to its folder.

    InvalidArgumentError names the place where the file is no valid YAML mapping. What the fields may hold is checked by
    the gateway, which names the field.
    """
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise InvalidArgumentError(f"{path}: a job file is a mapping of fields to values")
    working_dir = content.get("working_dir", ".")
    if not isinstance(working_dir, str):
        raise InvalidArgumentError(f"{path}: working_dir is a path")
    content["working_dir"] = str((path.resolve().parent / working_dir).resolve())
    return content
