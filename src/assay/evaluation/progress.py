"""Held-out evaluation over a run: every set against its start and its best, remembered across resumes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from assay.errors import InputError
from assay.evaluation.heldout import HeldoutResult, LogProbs, Sample, Scores, compare, divergence, evaluate
from assay.evaluation.options import EvalOptions
from assay.records import Prompt

if TYPE_CHECKING:
    from assay.rollouts.protocol import Sampling


@dataclass(frozen=True)
class HeldoutSet:
    """Prompts kept away from training, and the verifiers that mark them, which need not be those of training.

    The first set of a run decides which checkpoint is best. Others, such as general prompts that show forgetting, only
    report; one without a scorer reports lengths and the divergence from the base model.
    """

    prompts: Sequence[Prompt]
    scorer: Scores | None = None
    name: str = ""


@dataclass(frozen=True)
class HeldoutRound:
    """One evaluation of all sets at `step`: results by (set, figure), flat metrics, whether it is the best so far."""

    step: int
    results: Mapping[tuple[str, str], HeldoutResult]
    metrics: Mapping[str, float]
    is_best: bool


class Heldout:
    """Evaluates the sets of a run and remembers its start and its best, by the first set's primary figure.

    Figures: `accuracy` is greedy, `pass_rate` the mean over sampled answers. Metrics are `heldout/...` for the unnamed
    set and `heldout/NAME/...` for the others; lengths, rewards and pass@k of the sampled answers are under `sampled/`.
    The best figure of a run is optimistic: it was picked for being highest.
    """

    def __init__(
        self,
        sets: Sequence[HeldoutSet],
        sample: Sample,
        options: EvalOptions,
        max_completion_length: int,
        log_probs: LogProbs | None = None,
    ) -> None:
        names = [heldout.name for heldout in sets]
        if not sets or len(set(names)) != len(names):
            raise InputError(f"held-out sets need at least one, with distinct names; got {names}")
        self.sets = tuple(sets)
        self.sample = sample
        self.options = options
        self.log_probs = None if options.kl_to_base is False else log_probs
        self.max_tokens = options.max_completion_length or max_completion_length
        self.start: dict[str, HeldoutResult] = {}
        self.best: dict[str, HeldoutResult] = {}
        self.start_step: int | None = None
        self.best_step: int | None = None
        self.last_step: int | None = None

    def due(self, step: int, last: bool = False) -> bool:
        """Whether to evaluate after `step` updates: at the start, every `eval.every`, and after the last.

        Asked once a round. A multiple that lies within a round of several updates is due at the end of that round.
        """
        every = self.options.every
        return step == 0 or last or (every > 0 and step // every > (self.last_step or 0) // every)

    @property
    def best_figure(self) -> float | None:
        """The first set's primary figure at the best step; None before it was measured."""
        result = self.best.get(self._primary)
        return None if result is None else result.accuracy

    def evaluate(self, step: int, trainer_state: Any = None) -> HeldoutRound:
        """Measure every set now, compare with the start and with the best of earlier steps, then remember."""
        results: dict[tuple[str, str], HeldoutResult] = {}
        metrics: dict[str, float] = {}
        for heldout in self.sets:
            prefix = f"heldout/{heldout.name}/" if heldout.name else "heldout/"
            for figure, sampling, n in self._figures():
                result = evaluate(self.sample, heldout.scorer, heldout.prompts, sampling, n, trainer_state)
                results[heldout.name, figure] = result
                metrics |= {prefix + name: value for name, value in self._report(heldout.name, figure, result).items()}
            metrics |= {prefix + name: value for name, value in self._divergence(result).items()}
        is_best = self._remember(step, results)
        self.last_step = step
        if self.best_step is not None and self.best_figure is not None:
            metrics |= {"heldout/best": self.best_figure, "heldout/best_step": float(self.best_step)}
        return HeldoutRound(step, results, metrics, is_best)

    def state_dict(self) -> dict[str, Any]:
        """Plain JSON: the verdicts of the start and of the best, and their steps."""
        return {
            "start": {name: result.state_dict() for name, result in self.start.items()},
            "best": {name: result.state_dict() for name, result in self.best.items()},
            "start_step": self.start_step,
            "best_step": self.best_step,
            "last_step": self.last_step,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state_dict`."""
        self.start = {name: HeldoutResult.from_state(value) for name, value in state["start"].items()}
        self.best = {name: HeldoutResult.from_state(value) for name, value in state["best"].items()}
        self.start_step, self.best_step = state["start_step"], state["best_step"]
        self.last_step = state.get("last_step", self.start_step)

    @property
    def _primary(self) -> str:
        return _key(self.sets[0].name, self.options.primary)

    def _figures(self) -> Iterator[tuple[str, Sampling, int]]:
        """(figure, sampling, answers a prompt); the sampled ones last, since they give the divergence its meaning."""
        from assay.rollouts.protocol import Sampling  # its room loads transformers; reading runs needs none of it

        yield "accuracy", Sampling(self.max_tokens, temperature=0.0), 1
        if self.options.samples:
            options = self.options
            yield "pass_rate", Sampling(self.max_tokens, options.temperature, options.top_p), options.samples

    def _report(self, name: str, figure: str, result: HeldoutResult) -> dict[str, float]:
        """The figure, its interval, its paired changes, and the figure's own lengths and failures."""
        prefix = "" if figure == "accuracy" else "sampled/"
        own = {prefix + metric: value for metric, value in result.metrics.items()}
        if result.accuracy is None or result.interval is None:
            return own
        metrics = {
            figure: result.accuracy,
            f"{figure}_low": result.interval.low,
            f"{figure}_high": result.interval.high,
        }
        for label, reference in (("start", self.start), ("best", self.best)):
            difference = compare(earlier, result) if (earlier := reference.get(_key(name, figure))) else None
            if difference is not None:
                change = f"{figure}_vs_{label}"
                interval = difference.interval
                metrics |= {change: difference.value, f"{change}_low": interval.low, f"{change}_high": interval.high}
        return metrics | own

    def _divergence(self, result: HeldoutResult) -> dict[str, float]:
        if self.log_probs is None:
            return {}
        token, sequence = divergence(self.log_probs(list(result.groups)))
        name = "kl_to_base" if self.options.samples else "log_ratio_to_base"
        return {name: token, f"{name}_sequence": sequence}

    def _remember(self, step: int, results: Mapping[tuple[str, str], HeldoutResult]) -> bool:
        """Keep verdicts, never completions; ties stay with the earlier step, which drifted less."""
        kept = {_key(*key): HeldoutResult.from_state(result.state_dict()) for key, result in results.items()}
        if self.start_step is None:
            self.start, self.start_step = kept, step
        figure = kept[self._primary].accuracy
        is_best = figure is not None and (self.best_figure is None or figure > self.best_figure)
        if is_best:
            self.best, self.best_step = kept, step
        return is_best


def _key(name: str, figure: str) -> str:
    return f"{name}/{figure}"
