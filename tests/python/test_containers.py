"""The files of docker/: what can be checked without a container engine."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = sorted((ROOT / "docker").glob("*.Dockerfile"))
COMPOSE = sorted((ROOT / "docker").glob("*.yaml"))


def instructions(file):
    """The instructions of a Dockerfile as (name, arguments), without comments and with their lines joined."""
    lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    return [tuple(line.split(maxsplit=1)) for line in joined.splitlines() if line.strip()]


def test_finds_the_files():
    assert [file.name for file in DOCKERFILES] == ["cpu.Dockerfile", "cuda.Dockerfile"]
    assert "ranks.yaml" in [file.name for file in COMPOSE]


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_images_are_built_in_stages_and_run_without_root(file):
    steps = instructions(file)
    stages = [index for index, (name, _) in enumerate(steps) if name == "FROM"]
    assert len(stages) == 2
    last = steps[stages[1] :]
    assert [arguments for name, arguments in last if name == "USER"] == ["10001"]
    assert all("--from=build" in arguments for name, arguments in last if name == "COPY"), "sources in the image"
    for name, arguments in steps[: stages[1]]:
        if name == "COPY":
            assert all((ROOT / source).exists() for source in arguments.split()[:-1]), arguments
    assert file.with_name(file.name + ".dockerignore").exists()


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.name)
def test_images_have_the_torch_of_the_setup_script(file):
    (version,) = re.findall(r"^torch_version=(.*)$", (ROOT / "colossal.sh").read_text(), re.MULTILINE)
    assert set(re.findall(r"torch==([\d.]+)", file.read_text())) == {version}


@pytest.mark.parametrize("file", COMPOSE, ids=lambda file: file.name)
def test_compose_files_name_files_that_exist(file):
    yaml = pytest.importorskip("yaml")
    for service in yaml.safe_load(file.read_text())["services"].values():
        if "build" in service:
            assert (ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (file.parent / source).exists(), source


def test_ranks_find_each_other():
    yaml = pytest.importorskip("yaml")
    ranks = yaml.safe_load((ROOT / "docker" / "ranks.yaml").read_text())["services"]
    variables = [service["environment"] for service in ranks.values()]
    assert [each["RANK"] for each in variables] == ["0", "1"]
    for each in variables:
        assert each["WORLD_SIZE"] == str(len(ranks))
        assert ranks[each["MASTER_ADDR"]]["environment"]["RANK"] == "0"
        assert each["COLOSSAL_SECRET"].startswith("${COLOSSAL_SECRET:?"), "a run without a secret"
    assert len({each["MASTER_PORT"] for each in variables}) == 1
    assert not any("ports" in service for service in ranks.values()), "the store is open to other hosts"
