"""A command that answers an unknown option with the nearest one it knows, however far that is."""

from typing import Any

from typer.core import TyperCommand

from videoserve.commands.exits import CALL, leave
from videoserve.nearest import nearest


class NearestOption(TyperCommand):
    """For commands whose options are settings; their values do not begin with two dashes."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        known = ["--help", *(option for p in self.params for option in (*p.opts, *p.secondary_opts))]
        for word in args:
            name = word.partition("=")[0]
            if name.startswith("--") and name not in known:
                raise leave(
                    f"The command line sets {name}, which is not a setting; the nearest one is {nearest(name, known)}.",
                    CALL,
                )
        return super().parse_args(ctx, args)
