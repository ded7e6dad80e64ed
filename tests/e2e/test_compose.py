"""The processes of docker-compose.yml, started by hand with the commands and variables that stand there."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import pytest
import yaml

from app.settings import PREFIX, Settings
from tests.e2e.client import ENDLESS, Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Server, eventually, get, verify
from tests.fakes.running import FakeVllm

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = ROOT / "docker-compose.yml"
PORT: Final = "8080"  # inside every container
REPLICAS: Final = ("api-1", "api-2")
WORKERS: Final = ("worker-1", "worker-2")
SHORT: Final = {"load": {"tokens": 80}, "pace_ms": 5}

_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def variables() -> dict[str, str]:
    """What somebody has who copied `.env.example` to `.env`."""
    lines = (ROOT / ".env.example").read_text().splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


def filled_in(text: str, given: Mapping[str, str]) -> str:
    """The text with its `${…}` as Compose fills them in; fails for one that has to be set and is not."""

    def value(found: re.Match[str]) -> str:
        name, kind, words = found.groups()
        assert given.get(name) or kind != "?", f"{name}: {words}"
        return given.get(name) or (words if kind == "-" else "")

    return _VARIABLE.sub(value, text)


def all_filled_in(node: Any, given: Mapping[str, str]) -> Any:
    """The same for all texts below a node of the file."""
    match node:
        case str():
            return filled_in(node, given)
        case list():
            return [all_filled_in(one, given) for one in node]
        case dict():
            return {key: all_filled_in(one, given) for key, one in node.items()}
        case _:
            return node


def compose(**given: str) -> dict[str, Any]:
    """The services as Compose reads them, with these variables beside those of `.env.example`."""
    read = all_filled_in(yaml.safe_load(COMPOSE.read_text()), variables() | given)
    services: dict[str, Any] = read["services"]
    return services


def ours(services: Mapping[str, Any]) -> dict[str, Any]:
    """The services that run our own image."""
    return {name: service for name, service in services.items() if "build" in service}


def settings_of(service: Mapping[str, Any]) -> dict[str, str]:
    """The variables of a container, by the names of our settings."""
    return {name.removeprefix(PREFIX).lower(): value for name, value in service["environment"].items()}


class Containers:
    """All of our services as processes: only ports and the addresses of the other services are others."""

    def __init__(self, folder: Path, addresses: Mapping[str, str]) -> None:
        self.services = ours(compose())
        self.servers = {
            name: Server(folder / name, settings_of(service) | addresses | {"port": "0"}, command=_command(service))
            for name, service in self.services.items()
        }
        for server in self.servers.values():
            server.await_health()
        self.key = settings_of(self.services["api-1"])["api_keys"].split(",")[0]

    def user(self, name: str, judge: Judge) -> Api:
        """A user of one replica."""
        return Api(self.servers[name].url, judge, key=self.key, model="gpt-oss")

    def is_healthy(self, name: str) -> bool:
        """What Docker would find, with the check of the compose file."""
        port = urlsplit(self.servers[name].url).port
        how, python, *words = self.services[name]["healthcheck"]["test"]
        assert (how, python) == ("CMD", "python")
        command = [sys.executable, *(word.replace(f":{PORT}/", f":{port}/") for word in words)]
        return subprocess.run(command, stderr=subprocess.DEVNULL, check=False).returncode == 0

    def stop(self) -> None:
        """`docker compose down`."""
        for server in self.servers.values():
            server.signal(signal.SIGTERM)
        assert [server.wait() for server in self.servers.values()] == [0] * len(self.servers)
        for server in self.servers.values():
            assert "Traceback" not in server.stderr, server.stderr


def _command(service: Mapping[str, Any]) -> str:
    program, *words = service["command"]
    assert program == "verbatim"
    return " ".join("0" if word == PORT else word for word in words)


@pytest.fixture
def containers(tmp_path: Path, postgres_url: str, redis_url: str, running_fake: FakeVllm) -> Iterator[Containers]:
    addresses = {"database_url": postgres_url, "redis_url": redis_url, "engine_url": running_fake.url}
    started = Containers(tmp_path, addresses)
    with ExitStack() as left:
        for server in started.servers.values():
            left.callback(server.kill)
        yield started
        started.stop()
    verify(postgres_url)


@pytest.fixture
def users(containers: Containers, judge: Judge) -> list[Api]:
    return [containers.user(name, judge) for name in REPLICAS]


def test_what_is_created_on_one_replica_is_read_and_cancelled_on_the_other(
    containers: Containers, users: list[Api], fake: FakeVllm
) -> None:
    fake.script(SHORT, ENDLESS)
    here, there = users
    with here.stream(background=True) as stream:
        with there.follow(stream.response_id) as reader:
            reader.read()
        stream.read()
    assert reader.body == stream.body

    with here.stream(background=True) as stream, there.follow(stream.response_id) as reader:
        reader.until("response.output_text.delta", times=3)
        cancelled = there.cancel(stream.response_id).json()
        assert stream.read()[-1]["response"] == reader.read()[-1]["response"] == cancelled
    assert cancelled["status"] == "cancelled"
    assert eventually(lambda: fake.active() == 0)

    # a run is counted when it has ended, which is after its terminal event
    eventually(lambda: sum(_runs(containers.servers[name]) for name in WORKERS) == 2, what="the two runs")
    assert [_runs(containers.servers[name]) for name in REPLICAS] == [0, 0]


def test_every_container_is_healthy_and_asks_for_a_key(containers: Containers) -> None:
    assert all(containers.is_healthy(name) for name in containers.servers)
    for name in REPLICAS:
        assert get(f"{containers.servers[name].url}/v1/models").status_code == 401
    containers.servers["api-1"].stop()
    assert not containers.is_healthy("api-1")


def test_every_variable_is_a_setting() -> None:
    for service in ours(compose()).values():
        assert settings_of(service).keys() <= Settings.model_fields.keys()


def test_the_addresses_name_services_and_what_they_have() -> None:
    services = compose()
    postgres = services["postgres"]["environment"]
    for service in ours(services).values():
        settings = settings_of(service)
        database = urlsplit(settings["database_url"])
        assert (database.scheme, database.hostname) == ("postgresql", "postgres")
        assert (database.username, database.password, database.path) == (
            postgres["POSTGRES_USER"],
            postgres["POSTGRES_PASSWORD"],
            f"/{postgres['POSTGRES_DB']}",
        )
        assert urlsplit(settings["redis_url"]).hostname in services
        assert urlsplit(settings["engine_url"]).hostname in services
        assert service["depends_on"].keys() == {"postgres", "valkey"}


def test_docker_waits_longer_than_a_drain_takes() -> None:
    drain = Settings.model_fields["drain_seconds"].default
    for service in ours(compose()).values():
        assert float(service["stop_grace_period"].removesuffix("s")) >= drain + 20


@pytest.mark.parametrize("name", ["POSTGRES_PASSWORD", "VERBATIM_API_KEYS"])
def test_what_must_be_chosen_has_no_default(name: str) -> None:
    with pytest.raises(AssertionError, match=name):
        compose(**{name: ""})


def test_every_variable_that_can_be_chosen_is_in_the_example() -> None:
    named = {found[1] for found in _VARIABLE.finditer(COMPOSE.read_text())}
    assert named == set(re.findall(r"^(?:# )?([A-Z_0-9]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))


def _runs(server: Server) -> int:
    lines = get(f"{server.url}/metrics").text.splitlines()
    return int(sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("verbatim_runs_total{")))
