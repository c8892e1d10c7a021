"""The query of a call: a parameter that its route does not have is refused, as a field of a body is."""

from fastapi import Request
from fastapi.dependencies.models import Dependant

from videoserve.api.errors import unknown_parameter


async def known_only(request: Request) -> None:
    """Raises ServeError (422) for the first query parameter that the route does not read."""
    if request.query_params:
        known = _parameters(request.scope["route"].dependant)
        for name in request.query_params:
            if name not in known:
                raise unknown_parameter(name, known)


def _parameters(dependant: Dependant) -> set[str]:
    """What a route and everything it depends on read of the query."""
    own = {field.alias for field in dependant.query_params}
    return own.union(*(_parameters(inner) for inner in dependant.dependencies))
