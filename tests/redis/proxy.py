"""A line to a server that counts what goes over it and fails when it is told to, and a server that says one
thing."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Iterator

RST = struct.pack("ii", 1, 0)


def _listener() -> socket.socket:
    return socket.create_server(("127.0.0.1", 0))


def _end(listener: socket.socket) -> None:
    listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
    listener.close()


class Line:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket) -> None:
        self._proxy, self._client = proxy, client
        self._server = socket.create_connection(("127.0.0.1", proxy.target))
        for end in (client, self._server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._asked = False
        self.thread = threading.Thread(target=self._pump, daemon=True)
        self.silent = False
        """Swallows everything, as a path does that forgot the connection."""

    def _pump(self) -> None:
        with contextlib.suppress(OSError), self._client, self._server:
            while self._once():
                pass

    def _once(self) -> bool:
        ready, _, _ = select.select([self._client, self._server], [], [])
        source = self._server if self._server in ready else self._client
        data = source.recv(1 << 20)
        if not data:
            return False
        if self.silent:
            return True
        if source is self._client:
            if not self._asked:
                self._asked = True
                self._proxy.turns += 1
                if self._proxy.meets("before"):
                    return False
            self._proxy.sent += len(data)
            self._server.sendall(data)
            return True
        if self._asked:
            self._asked = False
            if self._proxy.meets("after"):
                return False
        self._proxy.received += len(data)
        self._client.sendall(data)
        return True

    def drop(self, reset: bool) -> None:
        with contextlib.suppress(OSError):
            if reset:
                self._client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            self._server.shutdown(socket.SHUT_RDWR)  # the pump sees it, and closes both
        self.thread.join(10)


class Proxy:
    """`turns` counts requests that were answered before the next was sent: round trips of one client."""

    def __init__(self, target: int) -> None:
        self.target = target
        self.turns = self.sent = self.received = 0
        self._cut = ("", 0)
        self._lines: list[Line] = []
        self._lock = threading.Lock()
        self._listener = _listener()
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    try:
                        line = Line(self, client)
                    except OSError:
                        client.close()
                        continue
                    line.thread.start()
                    self._lines.append(line)

    def cut(self, when: str, turn: int = 1) -> None:
        """Ends the connection once, `before` the server gets the coming request number `turn` or `after` it
        answered that one."""
        self._cut = (when, self.turns + turn)

    def meets(self, when: str) -> bool:
        if self._cut != (when, self.turns):
            return False
        self._cut = ("", 0)
        return True

    @property
    def armed(self) -> bool:
        return bool(self._cut[0])

    def disarm(self) -> None:
        self._cut = ("", 0)

    def drop(self, *, reset: bool = False) -> None:
        """Ends all connections, as a server does that was stopped, or with a reset."""
        with self._lock:
            while self._lines:
                self._lines.pop().drop(reset)

    def silence(self) -> None:
        """Lets all connections of now lead nowhere, without a sign; new ones work."""
        with self._lock:
            for line in self._lines:
                line.silent = True

    @contextlib.contextmanager
    def counting(self) -> Iterator[list[int]]:
        """Fills in, at its end: round trips, bytes sent, bytes received."""
        before = (self.turns, self.sent, self.received)
        counts: list[int] = []
        yield counts
        after = (self.turns, self.sent, self.received)
        counts += [now - then for now, then in zip(after, before, strict=True)]

    def close(self) -> None:
        _end(self._listener)
        self.drop()


@contextlib.contextmanager
def parrot(answer: bytes) -> Iterator[int]:
    """A server that gives every command one answer; its port."""
    listener = _listener()

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                with client:
                    while client.recv(1 << 20):
                        client.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    yield listener.getsockname()[1]
    _end(listener)
