"""Real vLLM servers, one of each for the whole session. Nothing here is collected unless VERBATIM_TEST_VLLM=1."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from openai_harmony import HarmonyEncoding, HarmonyEncodingName, load_harmony_encoding

from tests.e2e.client import Api
from tests.e2e.judge import Judge
from tests.e2e.serving import Fleet, Server
from tests.vllm.cable import Cable, cable_to
from tests.vllm.cache import ENVIRONMENT, GPT_OSS, MODELS, SMOLLM2, VOCABULARY, Part
from tests.vllm.prompts import Prompts
from tests.vllm.server import Vllm, vllm_server

ENABLED: Final = os.environ.get("VERBATIM_TEST_VLLM") == "1"
collect_ignore_glob = [] if ENABLED else ["*"]

TIMEOUT_SECONDS: Final = 2400
"""Starting a server, or both, counts as part of the first test that needs it."""

GPT_OSS_FLAGS: Final = (
    "--max-model-len=4096",
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
    "--tool-call-parser=openai",
    "--reasoning-parser=openai_gptoss",
)
SMOLLM2_FLAGS: Final = (
    "--max-model-len=4096",
    "--enable-prompt-tokens-details",
    "--enable-auto-tool-choice",
    "--tool-call-parser=hermes",
    f"--chat-template={MODELS / 'smollm2_tools.jinja'}",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder, so that no file can forget it."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(TIMEOUT_SECONDS))


@pytest.fixture(scope="session")
def gpt_oss_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """The tiny gpt_oss that knows `models/scenarios.py`; chat works too, with vLLM's own parsers."""
    with vllm_server(installed(GPT_OSS), "gpt-oss", log_in(tmp_path_factory, "gpt-oss"), GPT_OSS_FLAGS) as server:
        yield server


@pytest.fixture(scope="session")
def smollm2_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Vllm]:
    """SmolLM2-135M-Instruct for chat. Forced tool calls work; it is too small to choose one by itself."""
    with vllm_server(installed(SMOLLM2), "smollm2", log_in(tmp_path_factory, "smollm2"), SMOLLM2_FLAGS) as server:
        yield server


@pytest.fixture
def judge() -> Iterator[Judge]:
    """The judge of all streams of a test."""
    judge = Judge()
    yield judge
    judge.verdict()


@pytest.fixture(scope="module")
def cable(upstream: Vllm) -> Iterator[Cable]:
    """What lies between the module's `upstream` and its fleet."""
    with cable_to(upstream.url) as cable:
        yield cable


@pytest.fixture(scope="module")
def fleet(cable: Cable, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """`verbatim serve` processes over the module's `upstream`, on a SQLite file of their own."""
    folder = tmp_path_factory.mktemp("fleet")
    settings = {"engine": "vllm", "engine_url": f"{cable.url}/v1"}
    with Fleet(folder, f"sqlite:///{folder / 'log.db'}", **settings) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def server(fleet: Fleet) -> Server:
    """The module's `verbatim serve`."""
    return fleet.start()


@pytest.fixture
def api(server: Server, judge: Judge, upstream: Vllm) -> Api:
    """A user of it, who asks for the upstream's model."""
    return Api(server.url, judge, model=upstream.model)


@pytest.fixture(scope="session")
def encoding() -> HarmonyEncoding:
    """gpt-oss's vocabulary, for prompts made without the product."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TIKTOKEN_ENCODINGS_BASE", str(installed(VOCABULARY)))
        return load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)


@pytest.fixture(scope="session")
def prompts(encoding: HarmonyEncoding) -> Prompts:
    """Token ids of the scenarios' prompts."""
    return Prompts(encoding)


def installed(part: Part) -> Path:
    """The folder of a part that the installer has built."""
    for needed in (ENVIRONMENT, VOCABULARY, part):
        if not needed.folder.exists():
            raise FileNotFoundError(f"{needed.folder} is missing: run python -m tests.vllm.install")
    return part.folder


def log_in(factory: pytest.TempPathFactory, name: str) -> Path:
    """A file for a server's log."""
    return factory.mktemp(name) / "vllm.log"
