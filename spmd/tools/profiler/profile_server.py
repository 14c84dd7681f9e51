"""Traces for another process: a small HTTP server, on loopback unless `host` is given, and its
client."""

import io
import re
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from os import PathLike
from pathlib import Path
from typing import Any

from ...core import ends_at_user_line
from . import traces

_LOOPBACK = "127.0.0.1"
_LONGEST = 600.0  # seconds of a trace
_PLAIN = re.compile(r"[\w.\-]+\.(?:json\.gz|pb)")  # the names of a trace's files
# a web page cannot send it without a question to the server first, which answers none
_HEADER = "X-Spmd-Trace"
_MOST = 8  # requests at a time; more are closed unread
# seconds in addition to those of the trace: for the program that runs, and the files
_PATIENCE = 120.0


class _Server(ThreadingHTTPServer):
    """A server with few threads."""

    def __init__(self, *args: Any) -> None:
        self._free = threading.BoundedSemaphore(_MOST)
        super().__init__(*args)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called for each connection: starts its thread, or closes it."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Called in the thread of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: the client has gone."""


class _Handler(BaseHTTPRequestHandler):
    timeout = 5.0  # seconds in which a request has to come

    def do_POST(self) -> None:
        """Traces this process for the seconds that the query names; answers with the files as a
        zip."""
        url = urllib.parse.urlsplit(self.path)
        if not self._is_meant():
            return self._answer(
                403, f"expected a request of spmd.profiler.capture, with {_HEADER}".encode()
            )
        try:
            seconds = float(urllib.parse.parse_qs(url.query).get("seconds", ["1"])[0])
        except ValueError:
            seconds = -1.0
        if url.path != "/trace" or not 0 < seconds <= _LONGEST:
            return self._answer(
                400, f"expected /trace?seconds=, above 0 and up to {_LONGEST:.0f}".encode()
            )
        try:
            with tempfile.TemporaryDirectory() as folder:
                traces.start_trace(folder)
                time.sleep(seconds)
                self._answer(200, _packed(traces.stop_trace()))
        except RuntimeError as error:  # one is on
            self._answer(409, str(error).encode())

    def _is_meant(self) -> bool:
        """False for what a browser sends: for a page, or to a name that now stands for this
        machine."""
        if self.headers.get(_HEADER) is None or self.headers.get("Origin") is not None:
            return False
        assert isinstance(self.server, ThreadingHTTPServer)
        host = self.headers.get("Host", "").rpartition(":")[0]
        return self.server.server_address[0] != _LOOPBACK or host in (_LOOPBACK, "localhost")

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


_server: _Server | None = None


def _packed(folder: Path) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, path.name)
    return packed.getvalue()


@ends_at_user_line
def start_server(port: int, host: str = _LOOPBACK) -> int:
    """Starts a thread that traces this process at the request of
    `python -m spmd profile localhost:port folder`.

    It listens on this machine alone unless `host` is another address: a trace shows lines of your
    program to each process that can reach the port. It costs nothing until a request comes.

    Args:
        port: 0 for a free one. host: the address to listen at, "0.0.0.0" for all networks.

    Returns the port. Of several processes each takes a port of its own:
    `9012 + spmd.process_index()`. Raises RuntimeError where a server runs already, OSError where it
    cannot listen at the port: another process does.

    >>> import spmd
    >>> port = spmd.profiler.start_server(0)
    >>> spmd.profiler.stop_server()
    """
    global _server
    if _server is not None:
        raise RuntimeError(
            f"start_server: a server listens on port {_server.server_address[1]}; call "
            "spmd.profiler.stop_server()"
        )
    try:
        _server = _Server((host, port), _Handler)
    except OSError as error:
        raise OSError(
            error.errno,
            f"start_server: expected a free port of {host}, got {port} ({error.strerror}); give "
            "another one, 0 for any, or each of several processes its own, start_server(9012 + "
            "spmd.process_index())",
        ) from error
    threading.Thread(target=_server.serve_forever, name="spmd.profiler", daemon=True).start()
    return int(_server.server_address[1])


@ends_at_user_line
def stop_server() -> None:
    """Ends the server of `start_server`; does nothing where there is none.

    >>> import spmd
    >>> spmd.profiler.stop_server()
    """
    global _server
    if _server is not None:
        _server.shutdown()
        _server.server_close()
        _server = None


@ends_at_user_line
def capture(address: str, folder: str | PathLike[str], seconds: float = 1.0) -> Path:
    """Traces the process that has called `start_server` for some seconds, and writes the files
    here.

    Args:
        address: "host:port" of it. folder: for the files, as that of `trace`. seconds: up to 600.

    Returns the folder with the files. Raises ConnectionError where no server answers, RuntimeError
    with what it says where it cannot trace.

    >>> import tempfile, spmd
    >>> port = spmd.profiler.start_server(0)
    >>> path = spmd.profiler.capture(f"localhost:{port}", tempfile.mkdtemp(), seconds=0.01)
    >>> spmd.profiler.stop_server()
    >>> [file.suffix for file in sorted(path.iterdir())]
    ['.gz', '.pb']
    """
    url = f"http://{address}/trace?seconds={seconds}"
    request = urllib.request.Request(url, data=b"", method="POST", headers={_HEADER: "1"})
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=seconds + _PATIENCE) as answer:
            packed = answer.read()
    except urllib.error.HTTPError as error:
        raise RuntimeError(f"{address} has no trace: {error.read().decode()}") from error
    except OSError as error:
        raise ConnectionError(
            f"nothing answers at {address}: {error}; call spmd.profiler.start_server(port) in the "
            "process to be traced"
        ) from error
    path = Path(folder) / "plugins" / "profile" / time.strftime("%Y_%m_%d_%H_%M_%S")
    path.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        for name in archive.namelist():
            if not _PLAIN.fullmatch(name):
                raise ValueError(f"{address} sent a file named {name!r}, which is none of a trace")
            (path / name).write_bytes(archive.read(name))
    return path
