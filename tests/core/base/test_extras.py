"""The commands that install extras: the packages of each by their own names, never this
library's."""

import importlib
import importlib.metadata
import shlex
import sys
import tomllib
from collections.abc import Iterator

import jax
import pytest
from packaging.requirements import Requirement
from support import ROOT

from spmd.core.base import extras

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]


def packages(extra: str) -> Iterator[str]:
    """The packages of an extra in pyproject.toml, through its extras of this project, without
    ranges."""
    for requirement in map(Requirement, EXTRAS[extra]):
        if requirement.name == PROJECT["name"]:
            for nested in requirement.extras:
                yield from packages(nested)
        else:
            yield requirement.name


@pytest.fixture
def as_in_pyproject(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metadata of pyproject.toml as it is now, not of the day when the library was
    installed."""
    requires = [f'{text}; extra == "{extra}"' for extra, texts in EXTRAS.items() for text in texts]
    monkeypatch.setattr(
        importlib.metadata, "requires", {extras.NAME: [*PROJECT["dependencies"], *requires]}.get
    )


@pytest.mark.usefixtures("as_in_pyproject")
class TestCommand:
    """One function words the command, for a checkout and for a wheel."""

    @pytest.mark.parametrize("extra", EXTRAS)
    def test_extras(self, extra: str) -> None:
        """Every one of pyproject.toml: all of its packages, and no name that a stranger can
        take."""
        pip, install, *arguments = shlex.split(extras.install_command(extra))
        named = [Requirement(argument) for argument in arguments]
        assert (pip, install) == ("pip", "install") and all(
            one.specifier or one.name == "triton" for one in named
        )
        assert sorted(one.name for one in named) == sorted(
            packages(extra)
        ) and extras.NAME not in packages(extra)

    def test_words(self) -> None:
        assert extras.install_command("orbax") == "pip install 'orbax-checkpoint>=0.11'"
        assert extras.install_command("tpu") == "pip install 'jax[tpu]<0.13,>=0.10'"

    def test_plugins_of_jax(self) -> None:
        """jax takes the plugin of its own version alone, and an index has newer ones in the extra's
        range."""
        assert (
            extras.install_command("gpu-plan")
            == f"pip install jax-cuda12-plugin=={jax.__version__}"
        )


class TestWithoutMetadata:
    """A checkout on Python's path, which is not installed."""

    def test_words(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def requires(name: str) -> list[str]:
            raise importlib.metadata.PackageNotFoundError(name)

        monkeypatch.setattr(importlib.metadata, "requires", requires)
        assert extras.install_command("tpu") == "pip install '.[tpu]' in a checkout"


class TestImported:
    """A module of an extra, or an error that says what to install."""

    def test_here(self) -> None:
        assert extras.imported("json.decoder", "export", "load") is sys.modules["json.decoder"]

    @pytest.mark.parametrize("module", ["nosuch", "nosuch.part"])
    def test_missing(self, module: str) -> None:
        with pytest.raises(
            ModuleNotFoundError, match=rf"^load needs {module}: pip install 'orbax-"
        ) as caught:
            extras.imported(module, "orbax", "load")
        assert caught.value.name == "nosuch"

    def test_what_the_module_imports(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A package that is here, and lacks another: the error stays as it is."""

        def import_module(name: str) -> None:
            raise ModuleNotFoundError("No module named 'other'", name="other")

        monkeypatch.setattr(importlib, "import_module", import_module)
        with pytest.raises(ModuleNotFoundError, match=r"^No module named 'other'$"):
            extras.imported("orbax.checkpoint", "orbax", "load")
