"""Where a setting comes from, and what is said about a wrong one."""

from pathlib import Path

import pytest

from videoserve.config import PREFIX, Settings, load_settings, to_env


@pytest.fixture(autouse=True)
def _no_settings_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(PREFIX + name.upper(), raising=False)


def test_a_flag_beats_the_environment_which_beats_the_file_which_beats_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "videoserve.toml"
    config.write_text("port = 1\nworkers = 2\nbatch = 3\n")
    monkeypatch.setenv("VIDEOSERVE_PORT", "4")
    monkeypatch.setenv("VIDEOSERVE_WORKERS", "5")
    settings, source = load_settings({"port": 6}, config)
    assert (settings.port, settings.workers, settings.batch, settings.api) == (6, 5, 3, 1)
    assert [source[name] for name in ("port", "workers", "batch", "api")] == ["flag", "env", "file", "default"]


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ("file", "The config file sets wokers, which is not a setting; the nearest one is workers."),
        (
            "env",
            "The environment sets VIDEOSERVE_WOKERS, which is not a setting; the nearest one is VIDEOSERVE_WORKERS.",
        ),
        ("flag", "The command line sets wokers, which is not a setting; the nearest one is workers."),
    ],
)
def test_an_unknown_setting_names_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, said: str
) -> None:
    config = tmp_path / "videoserve.toml"
    config.write_text("wokers = 1\n" if place == "file" else "")
    if place == "env":
        monkeypatch.setenv("VIDEOSERVE_WOKERS", "1")
    with pytest.raises(ValueError, match="nearest") as caught:
        load_settings({"wokers": 1} if place == "flag" else {}, config)
    assert str(caught.value) == said


def test_a_value_out_of_range_is_named_with_its_setting() -> None:
    with pytest.raises(ValueError, match="Setting port is 70000, which is not usable") as caught:
        load_settings({"port": 70000})
    assert "65535" in str(caught.value)


def test_a_config_file_that_cannot_be_used_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.toml cannot be read: No such file"):
        load_settings({}, tmp_path / "missing.toml")
    (tmp_path / "broken.toml").write_text("port 8000")
    with pytest.raises(ValueError, match=r"broken\.toml is not TOML"):
        load_settings({}, tmp_path / "broken.toml")


def test_a_child_process_reads_the_same_settings_from_its_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"data": tmp_path / "a b", "image_hosts": "one.example, two.example", "lease_s": 2.5, "insecure": True}
    settings, _ = load_settings(flags)
    assert settings.image_hosts == ("one.example", "two.example")
    for name, value in to_env(settings).items():
        monkeypatch.setenv(name, value)
    again, source = load_settings({})
    assert again == settings
    assert source["lease_s"] == "env"
    assert source["redis_url"] == "default"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ranks": 0}, "Setting ranks is 0, which is not usable: Input should be greater than or equal to 1."),
        ({"ranks": 2, "parallel": "u4"}, "The plan u4 is for 4 ranks, and ranks is 2."),
        ({"parallel": "u2"}, "The plan u2 is for 2 ranks, and ranks is 1."),
        ({"ranks": 2, "parallel": "x9"}, "The plan 'x9' has the word 'x9', which means nothing. Allowed: one, or"),
        ({"wire": "fp4"}, "There is no wire codec called 'fp4'; there are none, int8, fp8."),
        ({"collective_timeout_s": 0}, "Setting collective_timeout_s is 0, which is not usable"),
    ],
)
def test_a_wrong_word_about_ranks_says_what_is_allowed(given: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match="which is not usable") as caught:
        load_settings(given)
    assert said in str(caught.value)


def test_a_plan_of_all_ranks_is_taken_as_it_is_written() -> None:
    settings, _ = load_settings({"ranks": "8", "parallel": "u4-cfg2-int8", "wire": "fp8"})
    assert (settings.ranks, settings.parallel, settings.wire) == (8, "u4-cfg2-int8", "fp8")
    assert load_settings({"ranks": 8})[0].parallel == "auto"
