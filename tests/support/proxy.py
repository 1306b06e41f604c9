"""A TCP proxy in front of a broker that can cut, stall, and hold requests back, for tests with real processes.

It listens where the broker's second listener tells clients to come, so that every connection of whoever uses that address
goes through it. What clients send is taken apart into Kafka's requests (a length and that many bytes); what the broker
answers passes as it comes. A request that is held outlives its client: it can be let go when the client is long dead.
"""

import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from typing import Self

HOST = "127.0.0.1"
PRODUCE = 0
CHUNK = 65_536

Match = Callable[[bytes], bool]


class Connection:
    """One client's connection, and the one to the broker that goes with it."""

    def __init__(self, client: socket.socket, broker: socket.socket) -> None:
        self.client = client
        self.broker = broker
        self.held: list[bytes] = []
        self.client_gone = False

    def close(self) -> None:
        for side in (self.client, self.broker):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
            side.close()


class Proxy:
    """Listens at one port and passes everything on to another, until it is told otherwise."""

    def __init__(self, port: int, broker_port: int) -> None:
        self.port = port
        self.held = threading.Event()
        """At least one request is being held back."""
        self._broker_port = broker_port
        self._lock = threading.RLock()
        self._flows = threading.Event()
        self._flows.set()
        self._cut = False
        self._match: Match | None = None
        self._connections: list[Connection] = []
        self._listener = socket.create_server((HOST, port), backlog=64)
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Every connection breaks, and none is made any more."""
        with self._lock:
            self._cut = True
            connections, self._connections = self._connections, []
        for connection in connections:
            connection.close()

    def stall(self) -> None:
        """Nothing passes either way, and nobody is told."""
        self._flows.clear()

    def mend(self) -> None:
        """Everything passes again, what waited first."""
        with self._lock:
            self._cut = False
        self._flows.set()

    def hold(self, match: Match) -> None:
        """Hold back each request that this is true of, and whatever follows it on its connection."""
        self.held.clear()
        self._match = match

    def let_go(self) -> int:
        """Send the broker what was held back, and hold no more. How many requests these were."""
        with self._lock:
            self._match = None
            count = 0
            for connection in self._connections:
                for request in connection.held:
                    with contextlib.suppress(OSError):
                        connection.broker.sendall(request)
                        count += 1
                connection.held = []
                if connection.client_gone:
                    with contextlib.suppress(OSError):
                        connection.broker.shutdown(socket.SHUT_WR)
        return count

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # or the thread that accepts keeps the port
        self._listener.close()
        self._flows.set()
        self.cut()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                cut = self._cut
            try:
                broker = None if cut else socket.create_connection((HOST, self._broker_port))
            except OSError:
                broker = None
            if broker is None:
                client.close()
                continue
            for side in (client, broker):
                side.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection = Connection(client, broker)
            with self._lock:
                self._connections.append(connection)
            for pump in (self._requests, self._answers):
                threading.Thread(target=pump, args=(connection,), daemon=True).start()

    def _requests(self, connection: Connection) -> None:
        """From the client to the broker, one request at a time."""
        waiting = b""
        try:
            while data := connection.client.recv(CHUNK):
                waiting += data
                while len(waiting) >= 4 and len(waiting) >= (end := 4 + struct.unpack(">i", waiting[:4])[0]):
                    self._flows.wait()
                    request, waiting = waiting[:end], waiting[end:]
                    self._pass(connection, request)
        except OSError:
            pass
        with self._lock:
            connection.client_gone = True
            if connection.held:
                return  # until they are let go
        connection.close()

    def _pass(self, connection: Connection, request: bytes) -> None:
        with self._lock:
            if connection.held or (self._match is not None and self._match(request)):
                connection.held.append(request)
                self.held.set()
                return
            connection.broker.sendall(request)

    def _answers(self, connection: Connection) -> None:
        """From the broker to the client."""
        with contextlib.suppress(OSError):
            while data := connection.broker.recv(CHUNK):
                self._flows.wait()
                if not connection.client_gone:
                    connection.client.sendall(data)
        with self._lock:
            if connection in self._connections:
                self._connections.remove(connection)
        connection.close()


def appends(request: bytes) -> bool:
    """Whether this request writes to the log."""
    return bool(struct.unpack(">h", request[4:6])[0] == PRODUCE and b"muster.log" in request)
