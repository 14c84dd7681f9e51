"""The store of a job's processes: a text of a stranger is no text of theirs; ports of a local job
are on loopback."""

from typing import Any

import pytest

import spmd
from spmd.core.run.pjrt import processes
from spmd.jobs.launching import local_processes
from spmd.tensors import launch
from spmd.tools.processes import agreement, watchdog

from .test_processes import results, together


class Store:
    """jax's store, as far as it is used."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def key_value_set(self, key: str, text: str, allow_overwrite: bool = False) -> None:
        self.texts[key] = text

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        return self.texts[key]

    def key_value_dir_get(self, folder: str) -> list[tuple[str, str]]:
        return [(key, text) for key, text in self.texts.items() if key.startswith(folder)]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Store:
    result = Store()
    monkeypatch.setenv("SPMD_JOB_SECRET", "a secret")
    monkeypatch.setattr(processes.distributed_state, "client", result)
    return result


class TestStrangers:
    """Whoever connects to the coordinator may write; what is read has a proof of the secret and of
    its key."""

    def test_own(self, store: Store) -> None:
        processes.publish("spmd/a", "text")
        assert processes.polled("spmd/a", 1) == "text" and processes.published("spmd/") == {
            "spmd/a": "text"
        }
        assert "a secret" not in store.texts["spmd/a"]

    @pytest.mark.parametrize(
        "how", ["plain", "no secret", "another secret", "another key", "changed"]
    )
    def test_foreign(
        self,
        how: str,
        store: Store,
        monkeypatch: pytest.MonkeyPatch,
        capfd: pytest.CaptureFixture[str],
    ) -> None:
        sealed = processes.seal("spmd/a", "text")
        match how:
            case "plain":
                sealed = "text"
            case "no secret" | "another secret":
                monkeypatch.setenv("SPMD_JOB_SECRET", how.removeprefix("no secret"))
                sealed = processes.seal("spmd/a", "text")
                monkeypatch.setenv("SPMD_JOB_SECRET", "a secret")
            case "another key":
                sealed = processes.seal("spmd/b", "text")
            case "changed":
                sealed += "!"
        store.texts["spmd/a"] = sealed
        with pytest.raises(
            spmd.ProcessError, match="got one without their secret: a stranger has written it"
        ):
            processes.polled("spmd/a", 1)
        assert processes.published("spmd/") == {}
        assert "a text is left out" in capfd.readouterr().err

    def test_no_verdict(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stranger's verdict would end all processes, and its notice be printed by them."""
        said: list[str] = []
        monkeypatch.setattr(watchdog, "hear", lambda kind, text: said.append(text))
        monkeypatch.setattr(agreement._state, "mismatch", None)
        store.texts |= {
            "spmd/verdict/text": '["ended by a stranger", 0]',
            "spmd/notices/x/1": "a notice",
        }
        agreement._look()
        assert agreement._state.mismatch is None and not said

    def test_torchruns_store(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The port of jax's coordinator, which torchrun's store hands on."""
        monkeypatch.setenv("SPMD_JOB_SECRET", "a secret")

        class Torchruns:
            def __init__(self, *args: Any, **kwargs: Any) -> None:
                pass

            def get(self, key: str) -> bytes:
                return b"666"

        monkeypatch.setattr(launch, "TCPStore", Torchruns)
        monkeypatch.setattr(launch, "PrefixStore", Torchruns)
        with pytest.raises(spmd.ProcessError, match="without their secret"):
            launch._port_from_store("host:1", 0, 1)


class TestLauncher:
    """`python -m spmd launch` gives its processes one secret, in the environment alone."""

    def test_secret(self, tmp_path: Any) -> None:
        code = (
            "import os, sys; print(os.environ['SPMD_JOB_SECRET'], os.environ['SPMD_JOB_SECRET'] "
            "in str(sys.orig_argv))"
        )
        secrets = set()
        for job in ("first", "second"):
            assert (
                local_processes.run(
                    [local_processes.sys.executable, "-c", code], 3, tmp_path / job, devices=None
                )
                == 0
            )
            texts = {path.read_text() for path in (tmp_path / job).iterdir()}
            assert len(texts) == 1
            secrets |= texts
        assert len(secrets) == 2 and all(
            len(text.split()[0]) == 64 and text.endswith("False\n") for text in secrets
        )

    def test_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SPMD_JOB_SECRET", "a secret")
        assert "SPMD_JOB_SECRET" not in {
            *spmd.core.variables.known_variables(),
            *spmd.core.variables.unknown_variables(),
        }
        assert "a secret" not in repr(spmd.config)


class TestPorts:
    """Where the address is on loopback, every port of a job is."""

    def test_loopback(self) -> None:
        loopback = (
            "0100007F",
            "0000000000000000FFFF00000100007F",
            "00000000000000000000000001000000",
        )
        first, second = results(together("listening", 0, 0))
        assert first["coordinator"] in first["listening"]
        assert {address for found in (first, second) for address in found["addresses"]} <= {
            *loopback
        }, (first, second)

    @pytest.mark.parametrize(
        ("address", "expected"),
        [
            ("127.0.0.1:1", True),
            ("localhost:1", True),
            ("127.1.2.3:1", True),
            ("[::1]:1", True),
            ("10.0.0.1:1", False),
            ("localhost.example:1", False),
            ("127.example:1", False),
            ("host:1", False),
        ],
    )
    def test_addresses(self, address: str, expected: bool) -> None:
        assert processes.is_loopback(address) is expected
