"""`videoserve doctor`: what on this machine makes videos slow or impossible."""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from videoserve.commands.exits import FAILED, told
from videoserve.commands.options import takes_settings
from videoserve.config import Settings

if TYPE_CHECKING:
    from videoserve.local.finding import Finding

MARKS = {"good": "[green]good[/]  ", "advice": "[yellow]advice[/]", "wrong": "[red]wrong[/] "}


@takes_settings(("data", "redis_url"))
def doctor(
    settings: Settings,
    as_json: Annotated[bool, typer.Option("--json", help="print the findings as JSON")] = False,
) -> None:
    """Look at cards, links, P2P, ACS, IOMMU, NUMA, NCCL, shared memory, limits, disk and Redis.

    Says what was found, why it matters and what to do. Exit code 0 when nothing is wrong (advice is not), 1 when
    something is.
    """
    from videoserve.local.doctor import examine

    with told():
        findings = examine(settings)
    if as_json:
        typer.echo(json.dumps([finding.to_dict() for finding in findings], indent=2))
    else:
        show(findings)
    if any(finding.level == "wrong" for finding in findings):
        raise typer.Exit(FAILED)


def show(findings: "list[Finding]") -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(soft_wrap=True, highlight=False)
    for finding in findings:
        console.print(f"{MARKS[finding.level]}  {escape(finding.about)}: {escape(finding.found)}")
        for sentence in filter(None, (finding.matters, finding.do)):
            console.print(f"          {escape(sentence)}")
    wrong = sum(finding.level == "wrong" for finding in findings)
    console.print("Nothing is wrong." if not wrong else f"{wrong} thing{'s are' if wrong > 1 else ' is'} wrong.")
