"""The scripts of `tests/names/compat/scripts`, loaded as modules under the drop-in."""

import importlib.util
from pathlib import Path
from types import ModuleType

SCRIPTS = Path(__file__).parent / "names" / "compat" / "scripts"


def loaded(script: str) -> ModuleType:
    """Returns a script's module; it is not run as `__main__`."""
    spec = importlib.util.spec_from_file_location(Path(script).stem, SCRIPTS / script)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
