"""From a name in a recipe to a function that marks completions."""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from assay.errors import InputError
from assay.rewards.options import RewardSpec
from assay.rewards.verifier import Verifier

# name -> (module:factory, one line for humans). Modules load when their name is used.
BUILTINS: dict[str, tuple[str, str]] = {
    "math": ("assay.rewards.mathematics:Math", "the boxed, tagged or #### answer equals gold as mathematics"),
    "gsm8k": ("assay.rewards.mathematics:Gsm8k", "math for GSM8K rows; takes the raw rationale as gold"),
    "exact_match": ("assay.rewards.exact:ExactMatch", "the completion, or its marked answer, is gold to the letter"),
    "regex": ("assay.rewards.exact:Regex", "the last match of a pattern equals gold, or is there at all"),
    "multiple_choice": ("assay.rewards.exact:MultipleChoice", "the option letter equals gold's"),
    "numeric": ("assay.rewards.exact:Numeric", "a marked number within a tolerance of gold, units converted"),
    "json_schema": ("assay.rewards.json_schema:JsonSchema", "valid under any JSON Schema: 1.0, else 0.0"),
    "json_fields": ("assay.rewards.json_schema:JsonFields", "share of the gold object's fields that are right"),
    "email_schema": ("assay.rewards.json_schema:EmailSchema", "the support-email schema of the running task"),
    "email_fields": ("assay.rewards.json_schema:EmailFields", "the support-email fields: 0, 0.2 ... 1.0"),
    "reasoning_gym": ("assay.rewards.gym:ReasoningGym", "the task's own scorer gives full marks"),
    "judge": ("assay.rewards.judge:LLMJudge", "a rubric score from a model behind an OpenAI-compatible endpoint"),
    "reward_model": ("assay.rewards.reward_model:RewardModel", "the first logit of a sequence-classification model"),
    "format": ("assay.rewards.shaping:Format", "a small bonus for think tags, a box, an answer tag"),
    "overlong": ("assay.rewards.shaping:Overlong", "DAPO's soft overlong punishment: 0 ... -1"),
    "length_cost": ("assay.rewards.shaping:LengthCost", "a cost for each token past a budget"),
    "cosine": ("assay.rewards.shaping:Cosine", "correctness scaled by length along a cosine"),
    "repetition": ("assay.rewards.shaping:Repetition", "a penalty for the share of repeated token n-grams"),
    "language": ("assay.rewards.shaping:Language", "the share of words in one script"),
    "code": ("assay.rewards.code:CodeVerifier", "the program passes every hidden test, in the sandbox"),
}


@dataclass(frozen=True)
class RewardFunction:
    """A resolved reward: what to call, under which name, and how much it counts."""

    name: str
    fn: Callable[..., Any]
    spec: RewardSpec

    @property
    def verifier(self) -> Verifier | None:
        """The built-in's richer interface, where it has one."""
        return self.fn if isinstance(self.fn, Verifier) else None

    @property
    def is_async(self) -> bool:
        inner = self.fn
        while isinstance(inner, functools.partial):
            inner = inner.func
        return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(getattr(inner, "__call__", None))  # noqa: B004

    @property
    def gives_verdicts(self) -> bool:
        return self.verifier is not None and self.verifier.gives_verdicts


def load_reward(spec: RewardSpec | Mapping[str, Any] | str | Callable[..., Any]) -> RewardFunction:
    """Resolve one reward. Raises InputError where the name, the file, the function or an option does not exist.

    >>> load_reward("email_fields").name
    'email_fields'
    """
    if isinstance(spec, Mapping):
        spec = RewardSpec(**spec)
    elif not isinstance(spec, RewardSpec):
        spec = RewardSpec(fn=spec)
    target = resolve(spec.fn) if isinstance(spec.fn, str) else spec.fn
    if is_torch_module(target):
        from assay.rewards.reward_model import RewardModel

        fn: Callable[..., Any] = RewardModel(target, **spec.options)
    elif spec.isolation == "process" and not inspect.isclass(target):
        from assay.rewards.isolated import Isolated

        fn = Isolated(spec, default_name(spec.fn, target))
    else:
        fn = instantiate(target, spec)
    return RewardFunction(spec.name or default_name(spec.fn, fn), fn, spec)


def load_rewards(specs: Any) -> list[RewardFunction]:
    """Resolve a list of rewards; two of the same name become `name` and `name_2`."""
    functions: list[RewardFunction] = []
    taken: set[str] = set()
    for function in map(load_reward, specs):
        name, count = function.name, 1
        while name in taken:
            count += 1
            name = f"{function.name}_{count}"
        taken.add(name)
        functions.append(RewardFunction(name, function.fn, function.spec))
    return functions


def resolve(name: str) -> Any:
    """The object that a string names."""
    if ":" not in name:
        if name not in BUILTINS:
            near = difflib.get_close_matches(name, BUILTINS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(
                f"rewards: no built-in reward is called {name!r}{hint} (built-ins: {', '.join(BUILTINS)}; "
                f"or name your own as file.py:function or package.module:function)"
            )
        name = BUILTINS[name][0]
    where, _, attribute = name.rpartition(":")
    module = load_file(Path(where)) if where.endswith(".py") else load_module(where)
    if not hasattr(module, attribute):
        raise InputError(f"rewards: {where} has no {attribute!r} (named by {name!r})")
    return getattr(module, attribute)


def load_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise InputError(f"rewards: cannot import {name!r}: {error}") from error


def load_file(path: Path) -> ModuleType:
    """Import a Python file by its path, once per path and process."""
    path = path.expanduser().resolve()
    if not path.is_file():
        raise InputError(f"rewards: the file {path} does not exist")
    name = f"assay_user_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def instantiate(target: Any, spec: RewardSpec) -> Callable[..., Any]:
    """Call factories (built-ins and classes) with the options; bind the options to plain functions."""
    if not callable(target):
        raise InputError(f"rewards: {spec.fn!r} is {type(target).__name__}, not something that can be called")
    if not inspect.isclass(target):
        return functools.partial(target, **spec.options) if spec.options else target
    try:
        inspect.signature(target).bind(**spec.options)
    except TypeError as error:
        known = ", ".join(inspect.signature(target).parameters)
        raise InputError(f"rewards: options of {spec.fn!r}: {error} (it takes {known or 'no options'})") from error
    factory: Any = target
    made: Callable[..., Any] = factory(**spec.options)
    return made


def is_torch_module(target: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(target, torch.nn.Module)


def default_name(fn: Any, resolved: Callable[..., Any]) -> str:
    """A built-in's own name; else the function's, partials unwrapped, instances by class (TRL's rule)."""
    if isinstance(fn, str) and ":" not in fn:
        return fn
    inner: Any = resolved
    while isinstance(inner, functools.partial):
        inner = inner.func
    return getattr(inner, "__name__", type(inner).__name__)
