"""The installer meets networks that fail, is interrupted, and is started twice."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.serving import eventually
from tests.vllm import install
from tests.vllm.cache import ROOT, Part

PART: Final = Part("part", [Path(__file__)])
INSTALLER: Final = """
import sys
from pathlib import Path
from tests.vllm import install
with install.locked(Path(sys.argv[1])):
    install.run(sys.executable, "-c", "print('at work', flush=True); import time; time.sleep(600)")
"""
PIP: Final = """#!/bin/sh
echo again >> "$0.asked"
[ $(wc -l < "$0.asked") -ge {good} ]
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing here touches what is installed."""
    monkeypatch.setenv("VERBATIM_VLLM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(install, "PAUSE_SECONDS", 0)


def environment_whose_pip_works(folder: Path, *, attempt: int) -> Path:
    """It fails until this attempt."""
    python = folder / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PIP.format(good=attempt))
    python.chmod(0o755)
    return folder


def is_locked(path: Path) -> bool:
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def test_a_download_that_fails_is_tried_again(tmp_path: Path) -> None:
    environment = environment_whose_pip_works(tmp_path, attempt=3)

    install.pip_install(environment, "something")

    assert (tmp_path / "bin" / "python.asked").read_text() == "again\n" * 3


def test_a_download_that_never_succeeds_fails(tmp_path: Path) -> None:
    environment = environment_whose_pip_works(tmp_path, attempt=100)

    with pytest.raises(subprocess.CalledProcessError):
        install.pip_install(environment, "something")

    assert (tmp_path / "bin" / "python.asked").read_text() == "again\n" * install.ATTEMPTS


def test_a_part_that_was_interrupted_is_built_from_nothing() -> None:
    def interrupted(folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "half").touch()
        raise KeyboardInterrupt

    def whole(folder: Path) -> None:
        folder.mkdir()
        (folder / "whole").touch()

    with pytest.raises(KeyboardInterrupt):
        install.ensure(PART, interrupted)
    assert not PART.folder.exists()

    install.ensure(PART, whole)

    assert [path.name for path in PART.folder.iterdir()] == ["whole"]


def test_of_two_installers_one_builds(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    builds: list[Path] = []
    waited = False

    def build(folder: Path) -> None:
        nonlocal waited
        builds.append(folder)
        second.start()
        waited = eventually(lambda: "waiting for another installer" in capfd.readouterr().out)
        folder.mkdir()

    monkeypatch.setattr(install, "PARTS", ((PART, build),))
    second = threading.Thread(target=install.main)

    install.main()
    second.join()

    assert waited
    assert len(builds) == 1


def test_nobody_builds_beside_what_a_killed_installer_has_begun(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    command = [sys.executable, "-c", INSTALLER, lock]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, start_new_session=True) as installer:
        assert installer.stdout is not None
        assert installer.stdout.readline() == b"at work\n"
        installer.kill()
        installer.wait()

        assert is_locked(lock)

        os.killpg(installer.pid, signal.SIGKILL)
        eventually(lambda: not is_locked(lock), what="the end of what it had begun")
