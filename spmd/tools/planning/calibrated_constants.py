"""The constants of a kind of device that `python -m spmd calibrate` has measured, read from its file."""

import json
from pathlib import Path

from ...core import config


def calibration_file() -> Path:
    """The file of `config.calibration_file`."""
    return Path(config.calibration_file).expanduser()


def calibrated(kind: str) -> dict[str, float]:
    """The measured constants of a kind of device, by name; {} where there are none."""
    path = calibration_file()
    if not path.exists():
        return {}
    try:
        return dict(json.loads(path.read_text()).get(kind, {}).get("rates", {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path}: expected what `python -m spmd calibrate` writes; delete it ({error})") from error
