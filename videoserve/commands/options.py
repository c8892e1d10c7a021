"""Every setting as a flag, made from `Settings` itself, so that a new setting is a flag from the start."""

import functools
import inspect
import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from videoserve.commands.exits import CALL, leave
from videoserve.config import PREFIX, Settings, load_settings

T = TypeVar("T")


def takes_settings(names: Collection[str] = tuple(Settings.model_fields)) -> Callable[..., Callable[..., Any]]:
    """A command whose parameters `settings` and, when it has one, `source` come from flags, environment and --config.

    `names` are the settings that are flags of this command. Wrong ones end it with a sentence and exit code 2.
    """

    def decorate(command: Callable[..., T]) -> Callable[..., T]:
        own = inspect.signature(command).parameters
        config = _parameter("config", Path, typer.Option(help="a TOML file with settings, one a line"))
        flags = [config, *(_flag(name) for name in names)]
        kept = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own.values() if p.name not in _MADE]

        @functools.wraps(command)
        def with_settings(**given: Any) -> T:
            said = {name: value for name in names if (value := given.pop(name)) is not None}
            try:
                settings, source = load_settings(said, given.pop("config"))
            except ValueError as error:
                raise leave(error, CALL) from None
            made = {"settings": settings, "source": source}
            try:
                return command(**given, **{name: value for name, value in made.items() if name in own})
            except OSError as error:
                if settings.data.is_dir() or not _concerns(error, settings.data):
                    raise
                raise leave(
                    f"The data folder {settings.data} cannot be used: {error.strerror}; name another with --data.", CALL
                ) from None

        with_settings.__signature__ = inspect.Signature([*kept, *flags])  # type: ignore[attr-defined]
        # typer reads the types from here and the rest from the signature.
        with_settings.__annotations__ = {p.name: p.annotation for p in (*kept, *flags)}
        return with_settings

    return decorate


_MADE = ("settings", "source")


def _concerns(error: OSError, folder: Path) -> bool:
    """Whether it is the folder, what it is in or what is in it that an error names."""
    place = Path(os.fsdecode(error.filename or ""))
    return error.filename is not None and (place.is_relative_to(folder) or folder.is_relative_to(place))


def _flag(name: str) -> inspect.Parameter:
    field = Settings.model_fields[name]
    default = field.get_default()
    shown = ",".join(default) if isinstance(default, tuple) else default
    about = f"{field.description}; " if field.description else ""
    option = typer.Option(
        help=f"{about}{'none' if shown in (None, '') else shown} unless said",
        envvar=None,
        show_default=False,
        # Short: in a terminal of 80 columns a long one takes the place of the name.
        metavar=None if field.annotation is bool else "VALUE",
        rich_help_panel=f"Settings, also as {PREFIX}<NAME> and in --config",
    )
    # All but switches come as text: pydantic checks them, with the same sentence wherever a value came from.
    return _parameter(name, bool if field.annotation is bool else str, option)


def _parameter(name: str, kind: Any, option: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option]
    )
