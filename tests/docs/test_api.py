"""docs/api.md: each public name in one topic, as the names and docstrings are."""

import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from test_public_api import DOORS, public

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs/site"))

import api  # noqa: E402

LISTED = [name for topic in api.TOPICS for name in api.names(topic)]


def test_as_made() -> None:
    script = (
        "import sys; sys.path.insert(0, 'docs/site'); import api; sys.stdout.write(api.tables())"
    )
    printed = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert printed.stdout == (ROOT / "docs/api.md").read_text(), "run python docs/site/api.py"


def test_each_name_is_in_one_topic() -> None:
    """A name at several doors is listed at one of them."""
    full = [name.full for name in LISTED]
    assert len(full) == len(set(full)) and len({topic.page for topic in api.TOPICS}) == len(
        api.TOPICS
    )
    values = [(name, getattr(module, name)) for module in DOORS for name in public(module)]
    listed: dict[str, list[Any]] = {}
    for name in LISTED:
        listed.setdefault(name.name, []).append(name.value)
    missing = [
        name for name, value in values if not any(value is other for other in listed.get(name, ()))
    ]
    assert missing == []
    same = [
        name.full for name in LISTED if sum(name.value is other for other in listed[name.name]) > 1
    ]
    assert same == []


def test_each_name_has_an_example() -> None:
    """Its own, or one of a method's."""
    silent = []
    for name in LISTED:
        if inspect.ismodule(name.value) or name.is_of_torch or not name.is_in_the_code:
            continue
        methods = vars(name.value).values() if inspect.isclass(name.value) else ()
        if not any(">>> " in (inspect.getdoc(each) or "") for each in (name.value, *methods)):
            silent.append(name.full)
    assert silent == []


def test_methods_are_there() -> None:
    for name, methods in api.METHODS.items():
        assert all(
            inspect.getdoc(getattr(pkgutil.resolve_name(name), method)) for method in methods
        )
