"""The listening socket: opened once by the supervisor, inherited by every API process, open while those restart."""

import errno
import socket


class CannotListen(Exception):
    """Why the address cannot be bound, as a sentence."""


def listen(host: str, port: int) -> socket.socket:
    """A bound TCP socket that accepts connections; port 0 takes any free one. Raises CannotListen."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        # Connections that arrive while an API process is away wait here.
        return socket.create_server(address[:2], family=family, backlog=1024)
    except socket.gaierror:
        raise CannotListen(f"The host {host!r} is not an address or a name of this machine.") from None
    except OSError as error:
        raise CannotListen(_sentence(host, port, error)) from None


def url_of(server: socket.socket) -> str:
    """The URL under which this machine reaches the socket."""
    host, port = server.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = "127.0.0.1" if host == "0.0.0.0" else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _sentence(host: str, port: int, error: OSError) -> str:
    match error.errno:
        case errno.EADDRINUSE:
            return f"Port {port} on {host} is taken by another process; give another one with --port, or 0 for any."
        case errno.EADDRNOTAVAIL:
            return f"The host {host} is not an address of this machine."
        case errno.EACCES:
            return f"Port {port} needs more rights than this process has; ports from 1024 on do not."
        case _:
            return f"The address {host}:{port} cannot be used: {error.strerror}."
