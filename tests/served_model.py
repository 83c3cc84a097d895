"""A registered version with its index, made in seconds with a rule-following LM, and a server of it to talk to."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from http.server import ThreadingHTTPServer
from pathlib import Path

import httpx
import mlflow
from fake_lm import FakeLM

from crag_dspy import app
from crag_dspy.settings import Settings
from crag_dspy.signature import signature
from crag_dspy.split import split
from crag_dspy.state import save_state
from crag_dspy.types import Document
from optimize import registry

ThreadingHTTPServer.request_queue_size = 128  # the LM's and other stubs': twenty that connect at once are more than its 5
KEY = "sk-marked-key-000111222"
DAY = "2026-03-02"
THINGS = ("hygrometer", "anemometer", "barometer", "rain gauge", "pyranometer", "thermometer", "ceilometer", "lightning sensor")
QUESTIONS = [f"How long does the warranty of the Corvane {thing} last in months?" for thing in THINGS]
MONTHS = [12 + 3 * i for i in range(len(THINGS))]


@dataclass(frozen=True)
class Home:
    """A folder with an index and an MLflow store."""

    folder: Path
    settings: Settings
    fake: FakeLM

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder}/mlflow.db"

    def env(self, **more: str) -> dict[str, str]:
        """Return the environment of a process that serves from here, without the source tree on its path."""
        given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("CRAG_")}
        return given | {
            "MLFLOW_TRACKING_URI": self.store,
            "CRAG_HOME": str(self.settings.home),
            "CRAG_WEB": "none",
            "CRAG_LM": "openai/fake",
            "CRAG_LM_API_BASE": self.fake.address,
            "OPENAI_API_KEY": KEY,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
            "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",  # MLflow starts uvicorn by name
            **more,
        }


def make_home(folder: Path, fake: FakeLM) -> Home:
    """Make an index of one short document for each thing, in a new folder."""
    settings = Settings(home=folder / ".crag", web="none")
    index = app.open_index(settings, create=True)
    for thing, months in zip(THINGS, MONTHS, strict=True):
        text = f"The warranty of the Corvane {thing} lasts {months} months. It covers parts and work."
        document = Document(id=f"{thing}.md", title=thing, text=text, published_at=date(2026, 2, 20))
        index.upsert(document, split(document))
    return Home(folder, settings, fake)


def publish(home: Home, *, index: Path | None = None, manifest: dict[str, str] | None = None) -> registry.Published:
    """Register the uncompiled program as a version."""
    mlflow.set_tracking_uri(home.store)
    mlflow.set_experiment("crag")
    lm = home.fake.lm()
    program = app.build(home.settings, lm=lm).program
    packed = {"index": index} if index else {}
    with mlflow.start_run():
        return registry.publish(program, lm, params={}, metrics={}, manifest=manifest or {}, tables={}, **packed)


def save(home: Home, *, index: Path | None = None) -> Path:
    """Write the uncompiled program as a model into a folder: what `publish` registers, without a store, which takes seconds to make."""
    folder = home.folder / "model"
    save_state(app.build(home.settings, lm=home.fake.lm()).program, home.folder / "program.json")
    (home.folder / "manifest.json").write_text(json.dumps({"run_id": "unregistered"}), encoding="utf-8")
    mlflow.pyfunc.save_model(
        folder,
        python_model=str(registry.PACKAGE / "serving.py"),
        artifacts={name: str(home.folder / f"{name}.json") for name in ("program", "manifest")} | ({"index": str(index)} if index else {}),
        code_paths=[str(registry.PACKAGE)],
        signature=signature(),
        pip_requirements=["mlflow"],
    )
    return folder


class Server:
    """A process that answers HTTP."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: Path) -> None:
        self.process, self.url, self.log = process, url, log

    def ask(self, body: object, *, timeout: float = 60) -> httpx.Response:
        """Post to `/invocations`."""
        return httpx.post(f"{self.url}/invocations", json=body, timeout=timeout)

    def kill(self) -> None:
        """End it at once, with all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)

    def rss(self) -> float:
        """Return the megabytes that it and what it started hold in memory."""
        import psutil

        mine = psutil.Process(self.process.pid)
        return float(sum(one.memory_info().rss for one in [mine, *mine.children(recursive=True)]) / 1e6)


@contextmanager
def serving(command: list[str], env: dict[str, str], folder: Path, port: int, *, path: str = "/ping") -> Iterator[Server]:
    """Start a server and wait until it answers; end it afterwards."""
    log = folder / f"server-{port}.log"
    with log.open("wb") as out, subprocess.Popen(command, cwd=folder, env=env, stdout=out, stderr=out, start_new_session=True) as process:
        server = Server(process, f"http://127.0.0.1:{port}", log)
        try:
            _wait_until_up(server, path)
            yield server
        finally:
            server.kill()


def mlflow_serve(uri: str, port: int, *more: str) -> list[str]:
    return [sys.executable, "-m", "mlflow", "models", "serve", "-m", uri, "--env-manager", "local", "-p", str(port), *more]


def crag_serve(uri: str, port: int) -> list[str]:
    return [str(Path(sys.executable).parent / "crag"), "serve", "--model", uri, "--port", str(port)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_up(server: Server, path: str) -> None:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline:
        assert server.process.poll() is None, server.log.read_text()[-3000:]
        try:
            if httpx.get(f"{server.url}{path}", timeout=2).status_code == 200:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise AssertionError(server.log.read_text()[-3000:])
