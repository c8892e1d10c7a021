"""What deploy/ says, checked without a container engine: files that are copied, commands and settings that exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from videoserve import cli
from videoserve.api.auth import check_bind
from videoserve.config import PREFIX, Settings

ROOT = Path(__file__).parent.parent.parent
DEPLOY = ROOT / "deploy"
COMPOSE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
DOCKERFILE = re.sub(r"\\\n\s*", "", (DEPLOY / "Dockerfile").read_text())
INSTRUCTIONS = [line.split(" ", 1) for line in DOCKERFILE.splitlines() if line and not line.startswith("#")]


def stage(name: str) -> list[list[str]]:
    """The instructions of a build stage, those of the stages it is built from first."""
    lines: dict[str, list[list[str]]] = {}
    current: list[list[str]] = []
    for instruction, rest in INSTRUCTIONS:
        if instruction == "FROM":
            parent, _, alias = rest.partition(" AS ")
            current = lines[alias] = list(lines.get(parent, []))
        else:
            current.append([instruction, rest])
    return lines[name]


def parses(arguments: list[str]) -> None:
    """Lets the real command line read the arguments; an unknown command, option or value raises."""
    command: Any = typer.main.get_command(cli.app)
    context = command.make_context("videoserve", list(arguments))
    while context._protected_args or context.args:
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])
        context = command.make_context(name, rest, parent=context)


def readme_commands() -> list[list[str]]:
    """Those given to `run --rm worker`, and those between backquotes that begin with `keys`."""
    text = (DEPLOY / "README.md").read_text()
    found = re.findall(r"run --rm worker (.*)", text) + re.findall(r"`(keys [^`]*)`", text)
    assert len(found) >= 5
    return [shlex.split(command) for command in found]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_image_runs_as_nobody_special(target: str) -> None:
    lines = stage(target)
    assert [rest for instruction, rest in lines if instruction == "USER"] == ["10001"]
    assert lines[-1] == ["USER", "10001"]
    environment = " ".join(rest for instruction, rest in lines if instruction == "ENV")
    assert "PYTHONSAFEPATH=1" in environment
    for name in re.findall(rf"{PREFIX}(\w+)=", environment):
        assert name.lower() in Settings.model_fields
    assert any(instruction == "HEALTHCHECK" and "/health" in rest for instruction, rest in lines)
    assert ["ENTRYPOINT", '["videoserve"]'] in lines


def test_what_is_copied_exists() -> None:
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    for instruction, rest in INSTRUCTIONS:
        if instruction == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists(), source
                assert source not in ignored


def test_every_package_is_copied() -> None:
    pyproject = (ROOT / "pyproject.toml").read_text()
    (where,) = re.findall(r"where = \[(.*)\]", pyproject)
    copied = {rest.split()[0] for instruction, rest in stage("wheel") if instruction == "COPY"}
    assert set(re.findall(r'"(\w+)"', where)) | {"videoserve"} <= copied


@pytest.mark.parametrize(("target", "extras"), [("cpu", "[s3,text]"), ("cuda", "[gpu,s3,text]")])
def test_images_can_keep_files_in_a_bucket(target: str, extras: str) -> None:
    (install,) = [rest for _, rest in stage(f"{target}-packages") if "/wheels/*.whl" in rest]
    assert install.endswith(f'"$(echo /wheels/*.whl){extras}"')


def test_base_images_and_packages_are_pinned_to_a_line() -> None:
    images = [rest.split(" AS ")[0] for instruction, rest in INSTRUCTIONS if instruction == "FROM"]
    stages = [rest.split(" AS ")[1] for instruction, rest in INSTRUCTIONS if instruction == "FROM"]
    for image in [*(i for i in images if i not in stages), COMPOSE["services"]["redis"]["image"]]:
        assert re.fullmatch(r"[a-z]+:\d[\w.-]+", image), image


@pytest.mark.parametrize("service", ["api", "worker"])
def test_services_run_commands_that_exist(service: str) -> None:
    parses(COMPOSE["services"][service]["command"])


@pytest.mark.parametrize("command", readme_commands(), ids=" ".join)
def test_readme_commands_exist(command: list[str]) -> None:
    parses(command)


def test_unknown_command_would_be_noticed() -> None:
    for wrong in (["serve", "--wrokers", "0"], ["sevre"], ["keys", "ad", "me"]):
        with pytest.raises(Exception, match=r"(?i)no such (option|command)|^2$"):
            parses(wrong)


def test_settings_of_the_services_exist_and_share_redis_files_and_adapters() -> None:
    services = COMPOSE["services"]
    for service in (services["api"], services["worker"]):
        names = {name.removeprefix(PREFIX).lower(): value for name, value in service["environment"].items()}
        assert Settings(**names).redis_url == "redis://redis:6379/0"
        assert service["volumes"] == ["files:/data/files", "adapters:/data/adapters", "cache:/data/cache"]
        # Each container has a /dev/shm of its own, and all of them are one node.
        assert Settings(**names).cache_memory_gb == 0
    assert services["api"]["deploy"]["replicas"] == 2
    assert services["redis"]["command"][1:5] == ["--appendonly", "yes", "--appendfsync", "always"]
    assert "ports" not in services["redis"]
    assert set(COMPOSE["volumes"]) == {"redis", "files", "adapters", "cache"}


def test_replicas_need_a_key() -> None:
    host = dict(re.findall(rf"{PREFIX}(\w+)=(\S+)", DOCKERFILE))["HOST"]
    assert check_bind(Settings(host=host), has_keys=False) is not None
