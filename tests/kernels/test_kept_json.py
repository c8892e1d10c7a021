"""JSON on disk: whole or not there."""

from pathlib import Path

import pytest

from videoserve_kernels.kept_json import read_json, write_json


def test_what_was_written_last_is_there(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "kept.json"
    assert read_json(path) is None
    write_json(path, {"a": [1.5, None, "é"]})
    write_json(path, {"b": 2})
    assert read_json(path) == {"b": 2}
    with pytest.raises(TypeError):
        write_json(path, {"c": object()})
    assert read_json(path) == {"b": 2}
    assert [file.name for file in path.parent.iterdir()] == ["kept.json"]


def test_what_is_not_json_is_named_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "kept.json"
    path.touch()
    with pytest.raises(ValueError, match=r"The file .*/kept\.json is not JSON; without it"):
        read_json(path)
