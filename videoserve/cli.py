"""The command `videoserve`. Commands import what they need when they run, so that --help answers at once."""

import typer

from videoserve.commands import bench, cache, jobs, keys, lora
from videoserve.commands.chat import chat
from videoserve.commands.demo import demo
from videoserve.commands.doctor import doctor
from videoserve.commands.generate import generate
from videoserve.commands.nearest_option import NearestOption
from videoserve.commands.plan import plan
from videoserve.commands.serve import serve, worker

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="An image and a prompt go in over REST, an mp4 comes out, and no job is ever lost.",
)
app.command(cls=NearestOption)(serve)
app.command(cls=NearestOption)(worker)
app.command()(generate)
app.command()(chat)
app.command()(demo)
app.command()(plan)
app.command()(doctor)
app.add_typer(bench.app, name="bench")
app.add_typer(cache.app, name="cache")
app.add_typer(jobs.app, name="jobs")
app.add_typer(keys.app, name="keys")
app.add_typer(lora.app, name="lora")


def main() -> None:
    app()


if __name__ == "__main__":
    main()
