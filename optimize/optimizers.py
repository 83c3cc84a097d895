"""The optimizers: what DSPy's and GEPA's search changes in the predictors, each on its own examples or all of them at once."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any, Literal, NamedTuple

import dspy
from dspy.teleprompt.gepa.instruction_proposal import InstructionProposer

from crag_dspy.lm import Meter
from crag_dspy.policy import Policy
from crag_dspy.program import CRAG
from optimize import examples, feedback
from optimize.calibrate import Observation
from optimize.evaluate import Outcome
from optimize.proof import question_objective
from optimize.strict import Lenient, OptimizerFailure, compiling, strict

Optimizer = Literal["few-shot", "random-search", "mipro", "gepa"]
DEMOS = {"grade": 4, "rewrite": 3, "refine": 2, "generate": 4}
"""Demonstrations of each predictor, at most: all that a small LM's window has room for beside the evidence."""
WHOLE = "program"
RIGHT = 0.8  # of the objective, 0-1, from which a run of the program is shown as a demonstration: right, and nearly all else
REFLECTION_TOKENS = 1000  # that an instruction may be written in, at least
LONGEST = 2000  # characters of an instruction that GEPA proposes


class Budget(NamedTuple):
    """How much an optimizer may try, for each predictor, or for the whole program end to end."""

    examples: int
    """Learned from, and chosen on: so many of each at most."""
    candidates: int
    """Sets of demonstrations (random search), or of demonstrations and of instructions (MIPROv2)."""
    trials: int
    """Combinations that MIPROv2 measures; one that comes up again costs nothing."""
    rollouts: int
    """Calls of the metric that GEPA makes, about."""
    minibatch: int
    """Examples that GEPA reflects on at once."""


FULL_BUDGET = Budget(examples=20, candidates=6, trials=12, rollouts=150, minibatch=3)
QUICK_BUDGET = Budget(examples=4, candidates=2, trials=4, rollouts=12, minibatch=2)


class Recipe(NamedTuple):
    """How a program is compiled; recorded with the version."""

    optimizer: Optimizer = "few-shot"
    end_to_end: bool = False
    seed: int = 0
    budget: Budget = FULL_BUDGET

    def facts(self) -> dict[str, Any]:
        """Return it as it is recorded."""
        budget = {} if self.optimizer == "few-shot" else self.budget._asdict()
        return {"optimizer": self.optimizer, "end_to_end": self.end_to_end, "seed": self.seed, "budget": budget}


class Task(NamedTuple):
    """One thing to optimize: a predictor on its own examples, or the whole program on the questions."""

    name: str
    student: dspy.Module
    metric: Callable[..., Any]
    """(example, prediction, trace, pred_name, pred_trace) → a score in 0-1, or a `dspy.Prediction` of score and feedback."""
    examples: Sequence[dspy.Example]
    demos: int
    threshold: float | None = None
    """The score from which an example becomes a demonstration; None: any that is not 0."""


def tasks(program: CRAG, seen: Sequence[Observation], policy: Policy, as_of: date, *, end_to_end: bool) -> list[Task]:
    """Return what is optimized, in the order of the stages; no LM call."""
    if end_to_end:
        return [whole_program(program, seen, as_of)]
    find = examples.finder(program)
    answers = examples.for_generate(seen, policy, as_of)

    def searched(example: dspy.Example, prediction: Any) -> str:
        return feedback.of_rewrite(example, *find(example.question, str(prediction.query)))

    made: dict[str, tuple[list[dspy.Example], examples.Metric, Callable[[dspy.Example, Any], str]]] = {
        "grade": (examples.for_grade(seen), examples.grade_right, feedback.of_grade),
        "rewrite": (examples.for_rewrite(seen), examples.finds_gold(find), searched),
        "refine": (examples.for_refine(seen, policy, as_of), examples.picks_right, feedback.of_refine),
        "generate": (examples.in_turn(answers), examples.answers_right, feedback.of_generate),
    }
    return [Task(name, getattr(program, name), explained(right, text), mine, DEMOS[name]) for name, (mine, right, text) in made.items()]


def explained(right: examples.Metric, text: Callable[[dspy.Example, Any], str]) -> Callable[..., Any]:
    """Return a stage's metric with its feedback where GEPA asks for it, which is when it names a predictor."""

    def metric(
        example: dspy.Example, prediction: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> float | dspy.Prediction:
        score = float(right(example, prediction, trace))
        return score if pred_name is None else dspy.Prediction(score=score, feedback=text(example, prediction))

    return metric


def whole_program(program: CRAG, seen: Sequence[Observation], as_of: date) -> Task:
    """Return the task of compiling the program on its questions, for the composite objective of each."""

    def metric(
        example: dspy.Example, prediction: Any, trace: Any = None, pred_name: str | None = None, pred_trace: Any = None
    ) -> float | dspy.Prediction:
        answered = getattr(prediction, "answer", None)
        score = question_objective(Outcome(example.row, answered, prediction.trace, None)) if answered else 0.0
        if pred_name is None:
            return score
        asked = pred_trace[0][1] if pred_trace else None
        text = feedback.of_run(pred_name, example.row, answered, prediction.trace, asked) if answered else "The question was not answered."
        return dspy.Prediction(score=score, feedback=text)

    rows = [
        dspy.Example(question=o.row.question, as_of=as_of, row=o.row, need=o.row.need or "").with_inputs("question", "as_of") for o in seen
    ]
    return Task(WHOLE, program, metric, examples.in_turn(rows), max(DEMOS.values()), RIGHT)


def score(task: Task, predictor: dspy.Predict, example: dspy.Example) -> float:
    """Return what a predictor's reply to an example is worth, 0-1, read as the program reads it.

    Raises:
        dspy.LMError: the LM failed.
    """
    reply = Meter().ask(predictor, **example.inputs().toDict())
    read = dspy.Prediction(**{name: reply.field(name) for name in predictor.signature.output_fields})
    return float(task.metric(example, read))


def improve(program: CRAG, todo: Sequence[Task], recipe: Recipe, prompt_lm: dspy.LM, progress: Callable[[str], None]) -> list[str]:
    """Give the program's predictors the instructions and demonstrations that an optimizer finds; return what a person should know.

    A task without examples is left alone. Whatever else an optimizer leaves behind (flags, candidates, statistics) stays behind.

    Raises:
        OptimizerFailure: the optimizer failed.
        LMFailure: the LM failed, which DSPy would take for a score of 0.
    """
    notes = []
    for task in todo:
        if not task.examples:
            notes.append(f"{task.name}: 0 examples, no training question led to one; its prompt stays as it is")
            continue
        progress(f"{recipe.optimizer}: {task.name}")
        with compiling(), _sequential(task.student):
            try:
                found = _SEARCH[recipe.optimizer](task._replace(metric=strict(task.metric)), recipe, prompt_lm)
            except Exception as exc:  # DSPy's own: an assertion, a proposal out of format
                raise OptimizerFailure(
                    f"{recipe.optimizer} failed on {task.name} ({type(exc).__name__}: {exc}). Nothing was registered; the same command "
                    "repeats no LM call. Try another --optimizer."
                ) from exc
        mine = dict(program.named_predictors()) if task.name == WHOLE else {"self": getattr(program, task.name)}
        for name, predictor in found.named_predictors():
            if predictor.signature.instructions == mine[name].signature.instructions and not predictor.demos:
                notes.append(f"{task.name if name == 'self' else name}: its prompt stays, {recipe.optimizer} found no better one")
            mine[name].signature, mine[name].demos = predictor.signature, list(predictor.demos)
    return notes


@contextlib.contextmanager
def _sequential(student: dspy.Module) -> Iterator[None]:
    """Let a program make one call after the other, so that a seed reproduces what is found."""
    if not isinstance(student, CRAG):
        yield
        return
    parts, student.parts = student.parts, replace(student.parts, workers=1)
    try:
        yield
    finally:
        student.parts = parts


def _few_shot(task: Task, recipe: Recipe, prompt_lm: dspy.LM) -> dspy.Module:
    """Return the program with demonstrations of its own making (BootstrapFewShot)."""
    optimizer = dspy.BootstrapFewShot(
        metric=task.metric, metric_threshold=task.threshold, max_bootstrapped_demos=task.demos, max_labeled_demos=0
    )
    return optimizer.compile(task.student, trainset=list(task.examples)[: recipe.budget.examples])


def _random_search(task: Task, recipe: Recipe, prompt_lm: dspy.LM) -> dspy.Module:
    learn, choose = examples.halves(task.examples, recipe.budget.examples)
    optimizer = dspy.BootstrapFewShotWithRandomSearch(
        metric=task.metric,
        metric_threshold=task.threshold,
        max_bootstrapped_demos=task.demos,
        max_labeled_demos=0,  # examples of the whole program hold no predictor's output
        num_candidate_programs=recipe.budget.candidates,
        num_threads=1,
    )
    return optimizer.compile(task.student, trainset=learn, valset=choose)


def _mipro(task: Task, recipe: Recipe, prompt_lm: dspy.LM) -> dspy.Module:
    learn, choose = examples.halves(task.examples, recipe.budget.examples)
    optimizer = dspy.MIPROv2(
        metric=task.metric,
        metric_threshold=task.threshold,
        prompt_model=prompt_lm,
        max_bootstrapped_demos=task.demos,
        max_labeled_demos=0,
        auto=None,
        num_candidates=recipe.budget.candidates,
        num_threads=1,
        seed=recipe.seed,
        track_stats=False,
    )
    return optimizer.compile(
        task.student,
        trainset=learn,
        valset=choose,
        num_trials=recipe.budget.trials,
        minibatch=False,
        program_aware_proposer=False,  # it would show DSPy's source code, three calls for an instruction instead of one
        view_data_batch_size=4,  # examples in one prompt: as many as a window of 4,096 tokens has room for
    )


def _gepa(task: Task, recipe: Recipe, prompt_lm: dspy.LM) -> dspy.Module:
    learn, choose = examples.halves(task.examples, recipe.budget.examples)
    optimizer = dspy.GEPA(
        metric=task.metric,
        max_metric_calls=recipe.budget.rollouts,
        reflection_lm=prompt_lm,
        instruction_proposer=InstructionProposer(max_chars=LONGEST, adapter=Lenient()),
        reflection_minibatch_size=recipe.budget.minibatch,
        num_threads=1,
        seed=recipe.seed,
    )
    return optimizer.compile(task.student, trainset=learn, valset=choose)


_SEARCH: Mapping[Optimizer, Callable[[Task, Recipe, dspy.LM], dspy.Module]] = {
    "few-shot": _few_shot,
    "random-search": _random_search,
    "mipro": _mipro,
    "gepa": _gepa,
}


def writer(lm: dspy.LM, seed: int) -> dspy.LM:
    """Return the LM that writes instructions: with room for one, seeded as far as the provider takes a seed, at the temperature of 1
    that MIPROv2 and GEPA are made for.
    """
    tokens = max(int(lm.kwargs.get("max_tokens") or 0), REFLECTION_TOKENS)
    seeded = {"seed": seed} if "seed" in lm.supported_params else {}
    return lm.copy(cache=True, temperature=1.0, max_tokens=tokens, logprobs=None, top_logprobs=None, **seeded)
