"""The work folder of the recipe: everything a stage reads or writes lies in it, nothing in the package."""

import argparse
from collections.abc import Callable
from pathlib import Path


def work_folder(
    doc: str | None, add: Callable[[argparse.ArgumentParser], None] | None = None
) -> tuple[Path, argparse.Namespace]:
    """Parse a stage's command line: --work and what `add` adds to the parser. Returns (folder, arguments)."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("work"), help="folder of this recipe's files (./work)")
    if add is not None:
        add(parser)
    arguments = parser.parse_args()
    folder: Path = arguments.work
    folder.mkdir(parents=True, exist_ok=True)
    return folder, arguments
