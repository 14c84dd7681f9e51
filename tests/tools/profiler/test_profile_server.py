"""Traces that another process asks for: over loopback, plain files only."""

import errno
import http.client
import io
import socket
import threading
import time
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch

import spmd
from spmd.__main__ import main
from spmd.tools.profiler import profile_server
from spmd.torch_xla import xla_profiler


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server of this process."""
    yield spmd.profiler.start_server(0)
    spmd.profiler.stop_server()


class TestCapture:
    """A process is traced while it runs."""

    def test_command(self, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        x, ended = torch.ones(4, 4, device="xla"), threading.Event()
        done: list[int] = []
        torch.asinh(x).sum().item()  # compiled before the trace

        def command() -> None:
            done.append(main(["profile", f"localhost:{port}", str(tmp_path), "--seconds", "0.4"]))
            ended.set()

        thread = threading.Thread(target=command)
        thread.start()
        while not ended.wait(0.01):
            torch.asinh(x).sum().item()
        thread.join()
        assert done == [0]
        said = capsys.readouterr().out
        assert "asinh" in said and "ui.perfetto.dev" in said
        assert sorted(path.suffix for path in tmp_path.rglob("*.*")) == [".gz", ".pb"]

    def test_no_server(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["profile", "localhost:9", str(tmp_path)]) == 1
        assert "start_server" in capsys.readouterr().err

    def test_a_port_that_is_taken(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(profile_server, "_server", None)
        with socket.create_server(("127.0.0.1", 0)) as other:
            taken = other.getsockname()[1]
            with pytest.raises(
                OSError,
                match=rf"got {taken} \(.*; give another .*start_server\(9012 \+ spmd.process_index",
            ) as raised:
                spmd.profiler.start_server(taken)
        assert raised.value.errno == errno.EADDRINUSE and profile_server._server is None

    def test_a_trace_is_on(self, port: int, tmp_path: Path) -> None:
        with (
            spmd.profiler.trace(tmp_path),
            pytest.raises(RuntimeError, match=r"a trace into .* is on"),
        ):
            spmd.profiler.capture(f"localhost:{port}", tmp_path / "other", seconds=0.01)

    def test_by_their_names(self, port: int, tmp_path: Path) -> None:
        xla_profiler.trace(
            f"localhost:{port}", str(tmp_path), duration_ms=10, num_tracing_attempts=1
        )
        assert [*tmp_path.rglob("*.trace.json.gz")]


class TestSafety:
    """The server listens on loopback, for no web page; the names of files that it sends are no
    paths."""

    def test_loopback(self, port: int) -> None:
        assert spmd.tools.profiler.profile_server._server.server_address[0] == "127.0.0.1"
        with pytest.raises(RuntimeError, match=f"listens on port {port}"):
            spmd.profiler.start_server(0)

    @pytest.mark.parametrize(
        ("host", "path", "status"),
        [
            ("evil.example:80", "/trace?seconds=0.01", 403),
            ("localhost:1", "/trace?seconds=no", 400),
            ("localhost:1", "/trace?seconds=1e9", 400),
            ("localhost:1", "/etc/passwd", 400),
        ],
    )
    def test_refused(self, port: int, host: str, path: str, status: int) -> None:
        asked = http.client.HTTPConnection("127.0.0.1", port)
        asked.request("POST", path, headers={"Host": host, "X-Spmd-Trace": "1"})
        assert asked.getresponse().status == status
        asked.close()

    @pytest.mark.parametrize(
        "headers", [{}, {"Origin": "https://evil.example"}, {"Origin": "null", "X-Spmd-Trace": "1"}]
    )
    def test_web_pages(self, port: int, headers: dict[str, str]) -> None:
        """A page may send a simple POST; a header of its own it may not, as its question is not
        answered."""
        for method, status in (("POST", 403), ("OPTIONS", 501), ("GET", 501)):
            asked = http.client.HTTPConnection("localhost", port)
            asked.request(method, "/trace?seconds=0.01", headers=headers)
            assert asked.getresponse().status == status
            asked.close()

    def test_half_open(self, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Requests that never end hold few threads, and not for long."""
        monkeypatch.setattr(profile_server._Handler, "timeout", 1.0)
        before, opened = threading.active_count(), []
        for _ in range(100):
            opened.append(socket.create_connection(("127.0.0.1", port)))
            opened[-1].sendall(b"POST /trace?seconds=0.01 HTTP/1.1\r\n")
        assert threading.active_count() - before <= profile_server._MOST
        deadline = time.monotonic() + 30
        while threading.active_count() > before and time.monotonic() < deadline:
            time.sleep(0.1)
        spmd.profiler.capture(f"localhost:{port}", tmp_path, seconds=0.01)
        for connection in opened:
            connection.close()

    def test_a_name_that_is_a_path(self, tmp_path: Path) -> None:
        class Hostile(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                packed = io.BytesIO()
                with zipfile.ZipFile(packed, "w") as archive:
                    archive.writestr("../../../escaped.pb", b"")
                self.send_response(200)
                self.end_headers()
                self.wfile.write(packed.getvalue())

            def log_message(self, *args: object) -> None:
                """Prints nothing."""

        server = HTTPServer(("127.0.0.1", 0), Hostile)
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        with pytest.raises(ValueError, match="none of a trace"):
            spmd.profiler.capture(f"127.0.0.1:{server.server_address[1]}", tmp_path / "in")
        thread.join()
        server.server_close()
        assert not [*tmp_path.rglob("*.pb")]
