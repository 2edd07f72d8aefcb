"""A proxy before a schema registry that can refuse, stall, fail, ask who is there, and lie."""

import base64
import http.client
import json
import re
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

PASS, STALL, FAIL, HTML = "pass", "stall", "fail", "html"


class RegistryProxy:
    """Listens on 127.0.0.1 and hands on to `target`; what it does with a request is its `mode`.

    `lies` maps an id to the one whose schema is given instead, None: there is none. `user` is
    `name:password` that has to be given. With `certificate` (a PEM of key and certificate) it
    speaks TLS. `asked` are the paths of all requests, refused ones not among them.
    """

    def __init__(
        self, target: str, *, user: str | None = None, certificate: Path | None = None
    ) -> None:
        self.target = urlsplit(target)
        self.mode = PASS
        self.lies: dict[int, int | None] = {}
        self.user, self.certificate = user, certificate
        self.asked: list[str] = []
        self._port = 0
        self._let_go = threading.Event()
        self.listen()

    @property
    def url(self) -> str:
        """Its own URL, with the path of the target."""
        scheme = "http" if self.certificate is None else "https"
        return f"{scheme}://127.0.0.1:{self._port}{self.target.path}"

    def listen(self, mode: str = PASS) -> None:
        """Take connections, on the port it had before; the first request meets `mode` already."""
        self.mode, self._let_go = mode, threading.Event()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                proxy.answer(self)

            do_POST = do_PUT = do_DELETE = do_GET

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing: it is a test's."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                """A client that has gone while it was stalled."""

        self._server = Server(("127.0.0.1", self._port), Handler)
        if self.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(self.certificate)
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self._port = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()

    def refuse(self) -> None:
        """Take no connection any more, until `listen`."""
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """One request, as the mode says."""
        size = int(request.headers.get("Content-Length") or 0)
        body = request.rfile.read(size) if size else None
        self.asked.append(request.path)
        if self.mode == STALL:
            self._let_go.wait()
            return
        if self.mode == FAIL:
            self._reply(request, 500, b'{"error_code": 50001, "message": "out of order"}')
            return
        if self.mode == HTML:
            self._reply(request, 200, b"<html>Please sign in</html>")
            return
        if self.user is not None:
            wanted = "Basic " + base64.b64encode(self.user.encode()).decode()
            if request.headers.get("Authorization") != wanted:
                self._reply(request, 401, b"{}")
                return
        path = request.path
        asked = re.search(r"/schemas/ids/(\d+)", path)
        if asked is not None and int(asked[1]) in self.lies:
            instead = self.lies[int(asked[1])]
            if instead is None:
                gone = {"error_code": 40403, "message": f"Schema {asked[1]} not found."}
                self._reply(request, 404, json.dumps(gone).encode())
                return
            path = path.replace(f"/ids/{asked[1]}", f"/ids/{instead}")
        status, answer = self._hand_on(request, path, body)
        self._reply(request, status, answer)

    def _hand_on(
        self, request: BaseHTTPRequestHandler, path: str, body: bytes | None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self.target.netloc, timeout=60)
        try:
            kept = {
                name: value
                for name, value in request.headers.items()
                if name in ("Content-Type", "Accept")
            }
            connection.request(request.command, path, body, kept)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    @staticmethod
    def _reply(request: BaseHTTPRequestHandler, status: int, body: bytes) -> None:
        request.send_response(status)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)
