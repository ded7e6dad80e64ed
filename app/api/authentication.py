"""API keys: who may use `/v1`, and which tenant they are."""

from hashlib import sha256
from hmac import compare_digest
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app.errors import AuthenticationFailed

TENANT: Final = "verbatim.tenant"  # key in the ASGI scope
TENANT_DIGITS: Final = 16


class Authentication:
    """ASGI middleware: puts the tenant of a `/v1` request into its scope. Without keys everybody is one tenant."""

    def __init__(self, app: ASGIApp, *, api_keys: frozenset[str]) -> None:
        self._app = app
        self._digests = [sha256(key.encode()).digest() for key in sorted(api_keys)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises AuthenticationFailed."""
        if scope["type"] == "http":
            scope[TENANT] = self._tenant(scope) if self._digests and _guarded(scope["path"]) else ""
        await self._app(scope, receive, send)

    def _tenant(self, scope: Scope) -> str:
        scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not key.strip():
            raise AuthenticationFailed
        digest = sha256(key.strip().encode("latin-1")).digest()
        matches = [compare_digest(digest, known) for known in self._digests]  # all of them: the time tells nothing
        if not any(matches):
            raise AuthenticationFailed("This API key is not valid here.")
        return digest.hex()[:TENANT_DIGITS]


def _guarded(path: str) -> bool:
    return path == "/v1" or path.startswith("/v1/")
