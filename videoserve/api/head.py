"""Routes that answer HEAD as they answer GET; the HTTP server leaves the body away."""

from fastapi.routing import APIRoute
from starlette.routing import Match
from starlette.types import Receive, Scope, Send


class ReadRoute(APIRoute):
    """HEAD is not among its `methods`, so that /openapi.json describes each of these routes once."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, found = super().matches(scope)
        return (Match.FULL if match is Match.PARTIAL and self._is_head(scope) else match), found

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._is_head(scope):
            await self.app(scope, receive, send)
        else:
            await super().handle(scope, receive, send)

    def _is_head(self, scope: Scope) -> bool:
        return scope["method"] == "HEAD" and "GET" in (self.methods or ())
