"""The bytes that another node has, over HTTP."""

import hashlib
import hmac
import time
from typing import Final

import httpx

from videoserve_cache.index.entry import Peer

ROUTE: Final = "/v1/cache/blobs/"
BYTES_A_SECOND: Final = 100e6
# A node that died is not asked again and again until its heartbeat ends.
SHUN_S: Final = 5.0


class Peers:
    """GET {address}/v1/cache/blobs/{sha256} with `Authorization: Bearer {token(secret, sha256)}`. Thread-safe."""

    def __init__(self, secret: bytes, patience_s: float):
        self._secret = secret
        self._patience_s = patience_s
        self._client = httpx.Client(trust_env=False)
        # Address → when it may be asked again.
        self._shunned: dict[str, float] = {}

    def close(self) -> None:
        self._client.close()

    def fetch(self, peer: Peer, sha: str, size: int) -> bytearray | None:
        """The bytes, verified; None when the peer does not have them, or did not answer some seconds ago.

        Raises httpx.HTTPError; ValueError when it sent something else.
        """
        if self._shunned.get(peer.address, 0.0) > time.monotonic():
            return None
        try:
            content = self._get(f"{peer.address}{ROUTE}{sha}", sha, size)
        except httpx.TransportError:
            self._shunned[peer.address] = time.monotonic() + SHUN_S
            raise
        if content is not None and hashlib.sha256(content).hexdigest() != sha:
            raise ValueError(f"The node {peer.node} sent other bytes than those of {sha}.")
        return content

    def _get(self, url: str, sha: str, size: int) -> bytearray | None:
        headers = {"Authorization": f"Bearer {token(self._secret, sha)}"}
        end = time.monotonic() + self._patience_s + size / BYTES_A_SECOND
        content = bytearray()
        with self._client.stream("GET", url, headers=headers, timeout=self._patience_s) as answer:
            if answer.status_code == 404:
                return None
            answer.raise_for_status()
            for piece in answer.iter_raw():
                content += piece
                if time.monotonic() > end:
                    raise httpx.ReadTimeout(f"{url} takes too long.")
                if len(content) > size:
                    break
        return content


def token(secret: bytes, sha: str) -> str:
    """What opens one blob at any node of the same secret."""
    return hmac.new(secret, b"cache blob " + sha.encode(), hashlib.sha256).hexdigest()


def opens(secret: bytes, sha: str, authorization: str) -> bool:
    """Whether a request with this Authorization header may have the blob."""
    return hmac.compare_digest(authorization.encode(), f"Bearer {token(secret, sha)}".encode())
