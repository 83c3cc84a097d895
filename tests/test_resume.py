"""An interrupted run repeats no LM call and ends as an uninterrupted one; money is counted, and ends a run before the next call."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import dspy
import litellm
import mlflow
import pytest
from compile_world import program, prompts, rows, teach
from conftest import TODAY
from dspy.utils.callback import BaseCallback
from fake_lm import FakeLM, fake_lm_server
from filelock import FileLock

from crag_dspy.crag import Crag, context
from crag_dspy.errors import CragError, LMFailure
from crag_dspy.lm import Meter
from crag_dspy.settings import Settings
from optimize import __main__ as command
from optimize.compile import Compiled, Effort, compile_program, prepare
from optimize.optimizers import Budget, Optimizer, Recipe, writer
from optimize.preflight import estimate
from optimize.report import Steps
from optimize.spend import STALE_DAYS, CostReached, Replies, recording, run_folder

EFFORT = Effort(levels=0, tries=6, checks=4, doubts=4)
BUDGET = Budget(examples=4, candidates=2, trials=6, rollouts=14, minibatch=2)
KEY, HEADER = "sk-marked-key-000111222", "Bearer marked-header-333444555"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeLM]:
    monkeypatch.setitem(litellm.model_cost, "openai/fake", {"input_cost_per_token": 1e-6, "output_cost_per_token": 1e-6})
    with fake_lm_server() as served:
        yield teach(served)


class Interrupt(BaseCallback):  # type: ignore[misc]
    """The user's Ctrl-C, at the start of an LM call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def on_lm_start(self, call_id: str, instance: Any, inputs: dict[str, Any]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def compiled(lm: dspy.LM, folder: Path, recipe: Recipe, *, max_usd: float | None = None, at: int = 0) -> tuple[Compiled, Replies]:
    student = program(lm)
    lm = lm.copy(cache=True, callbacks=[Interrupt(at)])
    with recording(folder, max_usd=max_usd) as replies, context(lm), dspy.context(disable_history=True):
        prepared = prepare(student, rows(), TODAY, recipe)
        return compile_program(student, prepared, TODAY, EFFORT, recipe, writer(lm, 0), lambda text: None), replies


def ask(lm: dspy.LM, question: str = "What colour is the mast?") -> dict[str, Any]:
    """Ask one thing; return what it used."""
    meter = Meter()
    with context(lm.copy(cache=True)):
        assert meter.ask(program(lm).rewrite, question=question).prediction
    return {"calls": meter.lm_calls, "tokens": meter.budget.prompt_tokens}


@pytest.mark.parametrize(
    "recipe", [Recipe(name, whole, 0, BUDGET) for name in get_args(Optimizer) for whole in (False, True)], ids=lambda r: f"{r[0]}-{r[1]}"
)
def test_an_interrupted_compile_repeats_no_call_and_ends_alike(fake: FakeLM, tmp_path: Path, recipe: Recipe) -> None:
    whole, _ = compiled(fake.lm(), tmp_path / "whole", recipe)
    asked, fake.calls = [call.prompt for call in fake.calls], []
    with pytest.raises(KeyboardInterrupt):
        compiled(fake.lm(), tmp_path / "run", recipe, at=9)
    before = len(fake.calls)
    assert 0 < before < len(asked)
    assert (tmp_path / "run").is_dir()
    again, replies = compiled(fake.lm(), tmp_path / "run", recipe)
    assert prompts(again.program) == prompts(whole.program) and again.program.policy.value == whole.program.policy.value
    assert [call.prompt for call in fake.calls] == asked
    assert (replies.replayed, replies.made) == (before, len(asked) - before)
    lm = fake.lm()
    steps = estimate(recipe, EFFORT, prepare(program(lm), rows(), TODAY, recipe).tasks, lm, lm, measured=[])
    assert sum(step.calls[0] for step in steps) <= len(asked) <= sum(step.calls[1] for step in steps)
    assert not (tmp_path / "run").exists() and not list(tmp_path.glob("*.lock"))


def test_max_cost_stops_before_the_next_call_and_more_money_resumes(fake: FakeLM, tmp_path: Path) -> None:
    recipe = Recipe("gepa", budget=BUDGET)
    whole, books = compiled(fake.lm(), tmp_path / "whole", recipe)
    asked, fake.calls = len(fake.calls), []
    assert books.usd == pytest.approx((books.prompt_tokens + books.completion_tokens) / 1e6) and books.usd > 0
    limit = books.usd / 2
    with pytest.raises(CostReached, match=r"--max-cost .* is reached.*Run the same command with a higher --max-cost: it resumes"):
        compiled(fake.lm(), tmp_path / "run", recipe, max_usd=limit)
    stopped = len(fake.calls)
    assert 0 < stopped < asked
    with pytest.raises(CostReached):  # what was spent before counts
        compiled(fake.lm(), tmp_path / "run", recipe, max_usd=limit)
    assert len(fake.calls) == stopped
    again, more = compiled(fake.lm(), tmp_path / "run", recipe, max_usd=2 * books.usd)
    assert prompts(again.program) == prompts(whole.program) and len(fake.calls) == asked
    assert more.usd + more.earlier_usd == pytest.approx(books.usd) and more.usd < books.usd


@pytest.mark.parametrize("optimizer", get_args(Optimizer))
def test_no_money_is_no_call(fake: FakeLM, tmp_path: Path, optimizer: Optimizer) -> None:
    with pytest.raises(CostReached):
        compiled(fake.lm(), tmp_path / "run", Recipe(optimizer, budget=BUDGET), max_usd=0.0)
    assert not fake.calls


def test_the_reflection_lm_is_in_the_books(fake: FakeLM, tmp_path: Path) -> None:
    with recording(tmp_path / "run") as replies, context(fake.lm()):
        writer(fake.lm(), 0)("[[ ## question ## ]]\nx\n\nRespond, starting with the field `[[ ## query ## ]]`")
    assert replies.made == 1 and replies.usd > 0


def test_a_replayed_reply_counts_as_a_call_with_its_tokens(fake: FakeLM, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recording(tmp_path / "run"):
        first = ask(fake.lm())
        raise KeyboardInterrupt
    with recording(tmp_path / "run") as replies:
        assert ask(fake.lm()) == first and first["calls"] == 1 and first["tokens"] > 0
        assert ask(fake.lm()) == first
    assert (replies.made, replies.replayed, replies.repeated) == (0, 1, 1) and replies.usd == 0 < replies.earlier_usd
    assert len(fake.calls) == 1


def test_what_is_measured_is_really_asked(fake: FakeLM, tmp_path: Path) -> None:
    """Or the program measured second would get the first one's replies for nothing, and be quicker for it."""
    with recording(tmp_path / "run") as replies:
        for phase in ("before", "after", "after"):
            with replies.during(phase):
                ask(fake.lm())
    assert len(fake.calls) == 2 and replies.repeated == 1


def test_two_endpoints_with_one_model_name_share_nothing(fake: FakeLM, tmp_path: Path) -> None:
    with fake_lm_server() as other, recording(tmp_path / "run"):
        ask(fake.lm())
        ask(other.lm())
        assert len(fake.calls) == len(other.calls) == 1


def test_an_endpoint_whose_address_changes_is_known_by_its_name(fake: FakeLM, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recording(tmp_path / "run", names={fake.address: "embedded"}):
        ask(fake.lm())
        raise KeyboardInterrupt
    with fake_lm_server() as moved, recording(tmp_path / "run", names={moved.address: "embedded"}) as replies:
        ask(moved.lm())
        assert not moved.calls and replies.replayed == 1


def test_no_credential_is_kept(fake: FakeLM, tmp_path: Path) -> None:
    lm = fake.lm(api_key=KEY, extra_headers={"X-Authorization": HEADER})
    with pytest.raises(KeyboardInterrupt), recording(tmp_path / "run"):
        ask(lm)
        raise KeyboardInterrupt
    assert fake.calls[0].headers["x-authorization"] == HEADER
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert files and not [path for path in files if KEY.encode() in path.read_bytes() or HEADER.encode() in path.read_bytes()]
    with recording(tmp_path / "run") as replies:  # another key asks for the same
        ask(fake.lm(api_key="another-key-444", extra_headers={"X-Authorization": HEADER}))
    assert replies.replayed == 1


def test_another_command_has_another_folder(tmp_path: Path) -> None:
    one = run_folder(tmp_path, [("openai/a", "http://x/")], Recipe("gepa").facts(), "train", "dev", False)
    assert one == run_folder(tmp_path, [("openai/a", "http://x/")], Recipe("gepa").facts(), "train", "dev", False)
    others = [
        run_folder(tmp_path, [("openai/a", "http://y/")], Recipe("gepa").facts(), "train", "dev", False),
        run_folder(tmp_path, [("openai/a", "http://x/")], Recipe("mipro").facts(), "train", "dev", False),
        run_folder(tmp_path, [("openai/a", "http://x/")], Recipe("gepa", seed=1).facts(), "train", "dev", False),
        run_folder(tmp_path, [("openai/a", "http://x/")], Recipe("gepa").facts(), "train2", "dev", False),
    ]
    assert len({one, *others}) == 5 and one.parent == tmp_path / "compile"


def test_a_folder_that_cannot_be_used_costs_the_resuming_alone(fake: FakeLM, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    said: list[str] = []
    with recording(tmp_path / "file" / "run", warn=said.append) as replies:
        ask(fake.lm())
        ask(fake.lm())
    assert len(fake.calls) == 1 == replies.made and len(said) == 1 and "cannot be resumed" in said[0]


def test_a_damaged_folder_costs_the_resuming_alone(fake: FakeLM, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), recording(tmp_path / "run"):
        raise KeyboardInterrupt
    for path in (tmp_path / "run").rglob("cache.db"):
        path.write_bytes(b"garbage" * 999)
    said: list[str] = []
    with recording(tmp_path / "run", warn=said.append):
        ask(fake.lm())
    assert len(said) == 1 and "cannot be resumed" in said[0]


def test_the_same_run_twice_at_once_shares_no_folder(fake: FakeLM, tmp_path: Path) -> None:
    said: list[str] = []
    (tmp_path / "run").mkdir()
    with FileLock(tmp_path / "run.lock"), recording(tmp_path / "run", warn=said.append):
        ask(fake.lm())
    assert (tmp_path / "run").is_dir() and len(said) == 1 and "another process" in said[0]


def test_stale_folders_go(tmp_path: Path) -> None:
    import os
    import time

    for name, days in (("old", STALE_DAYS + 1), ("young", 1)):
        (tmp_path / name).mkdir()
        os.utime(tmp_path / name, (time.time() - days * 86_400,) * 2)
    with recording(tmp_path / "run"):
        pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["young"]


def test_a_failure_keeps_what_was_evaluated(fake: FakeLM, tmp_path: Path) -> None:
    def once(inputs: dict[str, str]) -> str:
        fake.status = 500
        return "one query"

    query, fake.rules["query"] = fake.rules["query"], once
    with pytest.raises(LMFailure, match="HTTP 500"):
        compiled(fake.lm(), tmp_path / "run", Recipe("mipro", budget=BUDGET))
    fake.status, fake.rules["query"] = 200, query
    _, replies = compiled(fake.lm(), tmp_path / "run", Recipe("mipro", budget=BUDGET))
    assert replies.replayed >= 1


# The whole command, but for the models and the web


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command.app, "build", lambda settings, *, today, lm: Crag(program(lm), lm))
    monkeypatch.setattr(command, "parts_digest", lambda *_: "parts")
    monkeypatch.setattr(command.app, "open_index", lambda *_: None)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    return tmp_path


def run(fake: FakeLM, folder: Path, at: int = 0, **options: Any) -> Any:
    settings = Settings(home=folder / ".crag")
    lm = fake.lm(callbacks=[Interrupt(at)])
    with Steps() as steps:
        return command.optimize(
            settings, rows()[:12], rows()[12:], TODAY, steps=steps, lm=lm, options=command.Options(quick=True, **options)
        )


def test_the_command_resumes_and_says_so(fake: FakeLM, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(fake, folder, at=60, optimizer="gepa")
    before = len(fake.calls)
    assert before and len(list((folder / ".crag" / "compile").iterdir())) >= 1
    published = run(fake, folder, optimizer="gepa")
    said = " ".join(capsys.readouterr().out.split())
    for words in (f"LM calls {before} were replayed", "What this run will take", "optimizing", "writing"):
        assert words in said, words
    data = mlflow.get_run(published.run_id).data
    assert data.metrics["spent/lm_calls_replayed"] == before and data.metrics["spent/lm_calls"] == len(fake.calls) - before
    assert data.metrics["spent/usd"] > 0 and data.metrics["after/seconds"] >= 0
    assert data.params["optimizer"] == "gepa" and data.params["reflection_lm"] == "openai/fake" and data.params["end_to_end"] == "False"
    assert "replayed" in Path("report.html").read_text(encoding="utf-8")
    assert not list((folder / ".crag" / "compile").iterdir())
    shutil.rmtree(folder / ".crag")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_cost": 1e-9}, "at least, more than --max-cost"),
        ({"judge": True}, "CRAG_JUDGE_LM is not set"),
    ],
)
def test_the_command_refuses_before_the_first_call(fake: FakeLM, folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(CragError, match=said):
        run(fake, folder, **options)
    assert not fake.calls and not (folder / "mlflow.db").exists()
