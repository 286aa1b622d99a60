"""HTTP/1.1 as the soak test speaks it: raw sockets, so that it can break off wherever it likes.

The rule: every wait has a limit, and bytes that do not follow the protocol are an error, never guessed at.
"""

import asyncio
import json
import socket
import time

HEAD_BYTES = 64 << 10
WAIT_S = 180
SMALL_BUFFER_BYTES = 4096


class WireError(Exception):
    """The server closed, stalled or did not speak HTTP."""


class Cut(WireError):
    """The server closed the connection before the answer was whole."""


async def limited(waiting, what):
    try:
        return await asyncio.wait_for(waiting, WAIT_S)
    except asyncio.TimeoutError:
        raise WireError(f"nothing came for {WAIT_S} s while waiting for {what}") from None
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise Cut(f"the connection closed while waiting for {what}: {error!r}") from None
    except (asyncio.LimitOverrunError, ValueError) as error:
        raise WireError(f"malformed answer while waiting for {what}: {error!r}") from None


class Answer:
    """Status and headers, with the body still on the wire."""

    def __init__(self, connection, status, headers):
        self.connection, self.status, self.headers = connection, status, headers
        self.chunked = headers.get("transfer-encoding", "").lower() == "chunked"
        self.left = None if self.chunked else int(headers.get("content-length", "0"))

    async def piece(self):
        """The next bytes of the body; empty at its end."""
        reader = self.connection.reader
        if not self.chunked:
            if not self.left:
                return b""
            data = await limited(reader.read(min(self.left, 64 << 10)), "the body")
            if not data:
                raise Cut("the connection closed inside the body")
            self.left -= len(data)
            return data
        size = int((await limited(reader.readuntil(b"\r\n"), "a chunk")).split(b";")[0].strip() or b"x", 16)
        data = await limited(reader.readexactly(size + 2), "a chunk's bytes")
        if data[size:] != b"\r\n":
            raise WireError("a chunk does not end where it should")
        return data[:size]

    async def whole(self):
        pieces = []
        while piece := await self.piece():
            pieces.append(piece)
        return b"".join(pieces)

    async def events(self):
        """(moment, data) of each server-sent event; comments are only checked for their form."""
        rest = b""
        while piece := await self.piece():
            moment = time.monotonic()
            *blocks, rest = (rest + piece).split(b"\n\n")
            for block in blocks:
                if block.startswith(b"data: ") and b"\n" not in block:
                    yield moment, block[6:]
                elif not block.startswith(b":"):
                    raise WireError(f"not an event: {block[:80]!r}")
        if rest:
            raise WireError(f"the stream ended inside an event: {rest[:80]!r}")


class Connection:
    """One connection. `small` asks for a small receive buffer, as a slow reader has it."""

    def __init__(self, host, port, small=False):
        self.host, self.port, self.small = host, port, small
        self.reader = self.writer = None

    async def open(self):
        near = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        near.setblocking(False)
        if self.small:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BUFFER_BYTES)
        near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            await asyncio.get_running_loop().sock_connect(near, (self.host, self.port))
            limit = SMALL_BUFFER_BYTES if self.small else HEAD_BYTES
            self.reader, self.writer = await asyncio.open_connection(sock=near, limit=limit)
        except BaseException:
            near.close()
            raise
        return self

    async def send(self, data):
        self.writer.write(data)
        try:
            await asyncio.wait_for(self.writer.drain(), WAIT_S)
        except asyncio.TimeoutError:
            raise WireError("the server took no bytes") from None
        except ConnectionError as error:
            raise Cut(f"the connection closed while sending: {error!r}") from None

    async def answer(self):
        """Reads the head of the next answer."""
        head = (await limited(self.reader.readuntil(b"\r\n\r\n"), "an answer")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        version, _, rest = first.partition(" ")
        if version != "HTTP/1.1" or not rest[:3].isdigit():
            raise WireError(f"not a status line: {first!r}")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        return Answer(self, int(rest[:3]), headers)

    def drop(self):
        """Closes at once, as a client that was killed does."""
        if self.writer is not None:
            self.writer.transport.abort()
            self.writer = self.reader = None


class Target:
    """Where requests go and with which key."""

    def __init__(self, url, key):
        host, _, port = url.removeprefix("http://").partition(":")
        self.host, self.port, self.key = host, int(port), key

    def head(self, method, path, length=None, key=None, request_id=None, extra=()):
        lines = [f"{method} {path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        key = self.key if key is None else key
        if key:
            lines.append(f"authorization: Bearer {key}")
        if request_id:
            lines.append(f"x-request-id: {request_id}")
        if length is not None:
            lines += ["content-type: application/json", f"content-length: {length}"]
        lines += extra
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def post(self, path, body, **more):
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.head("POST", path, len(data), **more) + data

    def connect(self, small=False):
        return Connection(self.host, self.port, small).open()

    async def once(self, request):
        """One request on a connection of its own: status, headers, body."""
        connection = await self.connect()
        try:
            await connection.send(request)
            answer = await connection.answer()
            return answer.status, answer.headers, await answer.whole()
        finally:
            connection.drop()
