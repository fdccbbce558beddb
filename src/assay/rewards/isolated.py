"""A user's reward function in killable worker processes, behind the same calling contract."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Mapping
from typing import Any

from assay.records import Judgement, Outcome
from assay.rewards.options import RewardSpec
from assay.rewards.threads import TimeLimit
from assay.rewards.workers import JobFailed, LimitReached, Limits, WorkerLost, WorkerPool


class IsolatedError(RuntimeError):
    """The function raised in its worker; the text is the exception's."""


class Isolated:
    """Calls `target` (`file.py:function` or `package.module:function`) in a worker of its own.

    What the function logs comes back with its rewards. A call over its limit loses its worker and is a timeout.
    """

    def __init__(self, spec: RewardSpec, name: str, workers: int = 0):
        self.spec, self.__name__ = spec, name
        self.pool = WorkerPool("assay.rewards.isolated:handle", workers, Limits(cpu_s=3600, wall_s=3600, memory_mb=0))

    def limit(self, seconds: float) -> None:
        """Per call, in wall-clock and CPU seconds; the scorer sets it from `sample_timeout_s`."""
        self.pool.limits = Limits(cpu_s=seconds, wall_s=seconds, memory_mb=0)

    def __call__(self, *, log_extra: Any = None, log_metric: Any = None, **arguments: Any) -> list[Any]:
        sent = {"fn": self.spec.fn, "options": dict(self.spec.options), "arguments": arguments}
        try:
            reply = self.pool.call({"pickled": base64.b64encode(pickle.dumps(sent)).decode()})
        except LimitReached as error:
            raise TimeLimit(str(error)) from error
        except WorkerLost as error:
            raise (TimeLimit if "no answer" in str(error) else IsolatedError)(str(error)) from error
        except JobFailed as error:
            raise IsolatedError(str(error)) from error
        for column, values in reply["extra"].items():
            if log_extra is not None:
                log_extra(column, values)
        for metric, value in reply["metrics"]:
            if log_metric is not None:
                log_metric(metric, value)
        return [restored(value) for value in reply["rewards"]]

    def close(self) -> None:
        self.pool.close()


def handle(message: Mapping[str, Any]) -> dict[str, Any]:
    """In the worker: one call of the function."""
    from assay.rewards.contract import accepted
    from assay.rewards.registry import load_reward

    sent = pickle.loads(base64.b64decode(message["pickled"]))
    function = load_reward(RewardSpec(fn=sent["fn"], options=sent["options"])).fn
    extra: dict[str, list[Any]] = {}
    metrics: list[tuple[str, float]] = []
    keywords = {
        **sent["arguments"],
        "log_extra": lambda column, values: extra.__setitem__(column, list(values)),
        "log_metric": lambda name, value: metrics.append((name, float(value))),
    }
    returned = function(**accepted(function, keywords))
    return {"rewards": [plain(value) for value in returned], "extra": extra, "metrics": metrics}


def plain(value: Any) -> Any:
    """A value that JSON carries; what it cannot carry arrives as its text, which the contract's check refuses."""
    if isinstance(value, Judgement):
        return {
            "outcome": str(value.outcome),
            "reward": value.reward,
            "extracted": value.extracted,
            "detail": value.detail,
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return value.item() if hasattr(value, "item") else repr(value)


def restored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return Judgement(Outcome(value["outcome"]), value["reward"], value["extracted"], detail=value["detail"])
    return value
