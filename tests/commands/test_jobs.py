"""`videoserve jobs`: ids that can be used."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from videoserve.cli import app
from videoserve.commands.client import Client

VIDEO = {
    "id": f"video_{'9' * 32}",
    "status": "completed",
    "stage": "done",
    "progress": 100,
    "size": "256x256",
    "prompt": "a [bold] prompt\nof " + "many words " * 30,
}


def test_ids_are_whole_in_a_table_and_as_json(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(self: Client, limit: int, status: str | None) -> list[dict[str, Any]]:
        return [VIDEO]

    monkeypatch.setattr(Client, "list", listed)
    table = CliRunner().invoke(app, ["jobs", "ls"], env={"COLUMNS": "80"}).stdout
    assert VIDEO["id"] in table
    assert "a [bold] prompt of many words" in table
    assert json.loads(CliRunner().invoke(app, ["jobs", "ls", "--json"]).stdout) == [VIDEO]
