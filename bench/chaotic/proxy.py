"""A TCP proxy whose connections can be cut: a network that fails."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import Self


class Proxy:
    """Passes on what arrives at its port to ``target`` on this machine, unless it is cut."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_cut = False
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Close the port and every connection."""
        self._server.close()
        self.cut()

    def cut(self) -> None:
        """Close every connection, and refuse those that are tried."""
        with self._lock:
            self._is_cut = True
            for end in self._open:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections be made again."""
        with self._lock:
            self._is_cut = False

    def _serve(self) -> None:
        while True:
            try:
                inner, _ = self._server.accept()
            except OSError:  # closed
                return
            with self._lock:
                refused = self._is_cut
            try:
                if refused:
                    raise OSError
                outer = socket.create_connection(("127.0.0.1", self._target), timeout=5.0)
                outer.settimeout(None)
            except OSError:
                inner.close()
                continue
            with self._lock:
                self._open |= {inner, outer}
            for source, sink in ((inner, outer), (outer, inner)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._open -= {source, sink}
        source.close()
