"""A TCP proxy in front of a broker, which can be cut and mended: the way to take a broker away and bring it back.

A client asks the first broker where the others are and then goes there directly, so the broker's own address in its
answers is replaced by the proxy's. Both are written in as many bytes, hence the lengths of messages stay right.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

_HOST = b"127.0.0.1"


class Proxy:
    """Passes connections on to `address` while it is not cut.

    Args:
        address: `host:port` of the broker; the host must be written in nine bytes, as 127.0.0.1 is.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._target = (host, int(port))
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.address = f"127.0.0.1:{self.port}"
        self._theirs = [name + struct.pack(">i", int(port)) for name in (_HOST, b"localhost", host.encode())]
        self._ours = _HOST + struct.pack(">i", self.port)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def cut(self) -> None:
        """Ends all connections and takes no new ones."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        with self._lock:
            for connection in self._connections:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
                connection.close()
            self._connections.clear()

    def mend(self) -> None:
        """Takes connections again, at the same port."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
                far = socket.create_connection(self._target, timeout=5)
                far.settimeout(None)
            except OSError:
                return
            with self._lock:
                self._connections |= {near, far}
            threading.Thread(target=self._pump, args=(near, far, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(far, near, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, answers: bool) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 18):
                if answers:
                    for theirs in self._theirs:
                        data = data.replace(theirs, self._ours)
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        with self._lock:
            self._connections -= {source, sink}
