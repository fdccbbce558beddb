"""The training loop: one paragraph of rounds, and what a run must remember to go on where it was killed."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from assay.objectives import Objective, reference_is_due
from assay.policy import Policy
from assay.prompts import Curriculum
from assay.ranks import Ranks
from assay.rollouts.producer import Collected, Rollouts
from assay.training.checkpoint import Checkpoints
from assay.training.collate import Collator, Round
from assay.training.options import TrainOptions
from assay.training.rundir import RunDirectory, disk_errors
from assay.training.schedule import learning_rate
from assay.training.update import Updater


class Reports(Protocol):
    """What the loop tells the person; see `assay.monitoring.Monitor`."""

    def phase(self, name: str, total: int = 0) -> None: ...

    def step(self, step: int, metrics: Mapping[str, float], rollouts: Collected | None = None) -> None: ...

    def message(self, text: str) -> None: ...

    def rewind(self, step: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Evaluates(Protocol):
    """Held-out evaluation: `step` is done; `last` says that no other follows. Remembers what it found."""

    def __call__(self, step: int, last: bool) -> None: ...

    def due(self, step: int, last: bool) -> bool: ...

    def rewind(self, step: int) -> None: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


@dataclass
class TrainerState:
    """What reward functions see as `trainer_state`; the names are TRL's."""

    global_step: int = 0
    max_steps: int = 0
    epoch: float = 0.0


class Trainer:
    """Runs rounds until `options.steps` updates are done. Every rank has one, and all call the same methods."""

    def __init__(
        self,
        *,
        policy: Policy,
        producer: Rollouts,
        curriculum: Curriculum,
        objective: Objective,
        collator: Collator,
        updater: Updater,
        options: TrainOptions,
        run: RunDirectory,
        monitor: Reports,
        evaluate: Evaluates,
        ranks: Ranks,
    ) -> None:
        self.policy = policy
        self.producer = producer
        self.curriculum = curriculum
        self.objective = objective
        self.collator = collator
        self.updater = updater
        self.options = options
        self.run_directory = run
        self.checkpoints = Checkpoints(run.checkpoints, options.keep_checkpoints)
        self.monitor = monitor
        self.evaluate = evaluate
        self.ranks = ranks
        self.step = 0
        self.rounds = 0
        self.saved: int | None = None
        self.peak = options.peak_learning_rate(policy.has_adapters)
        self.stop_requested = False
        self.told: set[str] = set()

    def run(self) -> int:
        """Train to the end, or to an interrupt; returns the number of updates that are done."""
        try:
            if not self.resume():
                self.evaluate(0, last=False)
            with self.interrupts():
                while self.step < self.options.steps and not self.stopped():
                    self.round()
                    if self.rounds % self.options.checkpoint_every == 0 or self.step >= self.options.steps:
                        self.checkpoint()
            if self.saved != self.step:
                self.checkpoint()
        finally:
            self.producer.close()
        return self.step

    def round(self) -> None:
        """Draw, write, mark, compare, update, push."""
        with disk_errors(f"step {self.step + 1}", self.kept()):
            epoch = self.producer.draws / len(self.curriculum.prompts)
            state = TrainerState(self.step, self.options.steps, epoch)
            collected = self.producer.collect(self.curriculum, self.options.prompts_per_round, self.step, state)
            self.tell(self.curriculum.note())
            self.monitor.phase("train")
            round_ = self.collator(collected.groups)
            self.updates(round_, collected, round_.metrics)
            self.monitor.phase("sync")
            last = self.step >= self.options.steps
            self.producer.push(self.policy, self.step, needed=self.evaluate.due(self.step, last))
            self.rounds += 1
            self.evaluate(self.step, last)

    def updates(self, round_: Round, rollouts: Collected | None, measured: Mapping[str, float]) -> None:
        """`num_iterations` passes over the round's windows; the round's rollouts go with the first update."""
        for _ in range(self.options.num_iterations):
            for window in round_.windows:
                if self.step >= self.options.steps:
                    return
                rate = learning_rate(self.step, self.options, self.peak)
                updated = self.updater(window, self.step, rate)
                self.step += 1
                self.move_reference()
                self.monitor.step(self.step, {**measured, **updated.metrics}, rollouts)
                rollouts, measured = None, {}

    def move_reference(self) -> None:
        """Let the reference follow the policy, where the objective says so and it is time."""
        spec = self.objective.spec
        if spec.sync_ref_model and reference_is_due(self.step, spec.ref_model_sync_steps):
            self.policy.move_reference(spec.ref_model_mixup_alpha)

    def resume(self) -> bool:
        """Go back to the newest checkpoint, if there is one; what was logged after it is cut off."""
        steps = self.checkpoints.steps()
        if steps:
            weights, state = self.checkpoints.load(steps[-1])
            self.policy.load_trainable_state_dict(weights)
            self.load_state_dict(state)
            self.saved = self.step
        if self.ranks.is_main:
            self.monitor.rewind(self.step if steps else -1)
            self.evaluate.rewind(self.step if steps else -1)
        self.ranks.barrier()
        self.producer.push(self.policy, self.step)
        return bool(steps)

    def checkpoint(self) -> None:
        """Everything that the next round depends on, whole or not at all."""
        self.monitor.phase("save")
        if self.ranks.is_main:
            with self.producer.frozen():
                state = self.state_dict()
            self.checkpoints.save(self.step, self.policy.trainable_state_dict(), state)
        self.ranks.barrier()
        self.saved = self.step

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "rounds": self.rounds,
            "reference": self.policy.reference_state_dict() if self.objective.spec.sync_ref_model else {},
            **{name: part.state_dict() for name, part in self.parts().items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.step, self.rounds = state["step"], state["rounds"]
        self.policy.load_reference_state_dict(state["reference"])
        for name, part in self.parts().items():
            part.load_state_dict(state[name])

    def parts(self) -> dict[str, Any]:
        """Everything with memory."""
        return {
            "optimizer": self.updater.optimizer,
            "scaler": self.updater.scaler,
            "objective": self.objective,
            "curriculum": self.curriculum,
            "producer": self.producer,
            "evaluation": self.evaluate,
            "monitor": self.monitor,
        }

    def tell(self, note: str | None) -> None:
        """Say what the pool as a whole has come to, once."""
        if note and note not in self.told:
            self.monitor.message(note)
            self.told.add(note)

    def kept(self) -> str:
        steps = self.checkpoints.steps()
        return f"Checkpoint step-{steps[-1]} is whole" if steps else "There is no checkpoint yet"

    def stopped(self) -> bool:
        """Whether any rank was asked to stop; all ranks leave the loop together."""
        return bool(self.ranks.max(int(self.stop_requested)))

    @contextlib.contextmanager
    def interrupts(self) -> Iterator[None]:
        """The first Ctrl-C or SIGTERM ends the run after this round, with a checkpoint; the second at once."""

        def ask(number: int, frame: Any) -> None:
            if self.stop_requested:
                raise KeyboardInterrupt
            self.stop_requested = True
            self.monitor.message("Stopping after this round, with a checkpoint. Press Ctrl-C again to stop at once.")

        previous = {number: self.handle(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in previous.items():
                self.handle(number, handler)

    @staticmethod
    def handle(number: int, handler: Any) -> Any:
        """Install a signal handler; only the main thread of a process may."""
        try:
            return signal.signal(number, handler)
        except ValueError:
            return None
