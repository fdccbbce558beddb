"""One fault planted in a real run, the doctor on what it left behind: the real trainer, verifiers and files, a tiny
model that was taught to answer right four times in ten."""

import numpy as np
import pytest
import torch
import transformers

import assay
from assay.monitoring.doctor import diagnose
from assay.monitoring.sources import open_run
from assay.policy.tiny import TURN, save_tiny, tiny_tokenizer

WORDS = ["red", "blue", "gold", "pink", "grey", "teal", "plum", "lime", "rose", "rust", "sand", "wine"]
ROWS = [{"question": f"Say {word}.", "answer": word} for word in WORDS]


def teach(folder, *, right=0.4, ending=None, seed=0, steps=120):
    """Write a tiny model that answers `ROWS` with the right word at about that rate, else with another of the words,
    and then writes the token `ending` (by default the end of the turn)."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    save_tiny(folder, "llama", seed=seed)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = tiny_tokenizer()
    ending = tokenizer.eos_token_id if ending is None else ending
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(steps):
        rows = [example(tokenizer, rng, right, ending) for _ in range(24)]
        width = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids, labels = torch.zeros(len(rows), width, dtype=torch.long), torch.full((len(rows), width), -100)
        for place, (prompt, answer) in enumerate(rows):
            ids[place, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
            labels[place, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
        # Right-padded and causal: what stands behind a row's end cannot reach it.
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def example(tokenizer, rng, right, ending):
    row = ROWS[rng.integers(len(ROWS))]
    word = row["answer"] if rng.random() < right else WORDS[rng.integers(len(WORDS))]
    messages = [{"role": "user", "content": row["question"]}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
    encode = {"add_special_tokens": False}
    return tokenizer(prompt, **encode)["input_ids"], [*tokenizer(word, **encode)["input_ids"], ending]


@pytest.fixture(scope="module")
def pupil(tmp_path_factory):
    return teach(tmp_path_factory.mktemp("pupil"))


@pytest.fixture
def examine(pupil, tmp_path):
    """Train and return what the doctor says of the run directory."""

    def run(**keys):
        settings = {
            "model": str(pupil),
            "dataset": ROWS,
            "rewards": ["exact_match"],
            "preset": "grpo",
            "output_dir": str(tmp_path / "runs"),
            "name": "r",
            "num_generations": 8,
            "max_completion_length": 16,
            "prompts_per_step": 4,
            "steps": 36,
            "learning_rate": 3e-3,
            "dtype": "float32",
            "prefix_sharing": True,
            "lora_rank": 4,
            "console": "quiet",
            "heldout_size": 0,
            "checkpoint_every": 1000,
        }
        assay.train(**(settings | keys))
        return diagnose(open_run(tmp_path / "runs" / "r"))

    return run


def texts(completions):
    return [item if isinstance(item, str) else item[-1]["content"] for item in completions]


def nothing(completions, **kwargs):
    return [0.0] * len(completions)


def everything(completions, **kwargs):
    return [1.0] * len(completions)


def length(completions, **kwargs):
    return [len(text) / 20 for text in texts(completions)]


def flaky(completions, **kwargs):
    if sum(map(ord, texts(completions)[0])) % 4 == 0:
        raise ConnectionError("the judge is away")
    return [float(text in WORDS[:6]) for text in texts(completions)]


def test_a_healthy_run_learns_and_raises_no_alarm(examine):
    diagnosis = examine()
    assert not diagnosis.alarming, diagnosis.to_json()["findings"]
    history = open_run(diagnosis.run).history
    reward = history.series("reward")[1]
    assert reward[-6:].mean() > reward[:6].mean() + 0.2
    assert {"TR01", "TR04", "RW01", "OP01", "OP02", "MM01"} <= {item.id for item in diagnosis.clear}


# Half of the gold answers are another row's, so that a model without doubts is half right and half wrong.
HALF_WRONG = [{**row, "answer": WORDS[-1 - index] if index % 2 else row["answer"]} for index, row in enumerate(ROWS)]
UNIFORM = ["curriculum.policy=uniform", "curriculum.retire_at=null"]
# name -> (the rule that should come first, settings)
FAULTS = {
    "verifier pays nothing": ("RW01", {"rewards": [nothing]}),
    "verifier pays everything": ("RW05", {"rewards": [everything]}),
    "parser expects another format": ("RW01", {"rewards": ["math"]}),
    "gold that the verifier cannot read": (
        "RW07",
        {"rewards": ["numeric"], "dataset": [{**row, "answer": "see the solution"} for row in ROWS]},
    ),
    "verifier that fails at times": (
        "RW04",
        {"rewards": {"functions": [flaky], "on_error": "skip"}},
    ),
    "limit below the answers' length": ("TR01", {"max_completion_length": 3}),
    "learning rate a thousand times too high": ("OP05", {"learning_rate": 1.0}),
    "weights that overflow": ("OP01", {"learning_rate": 1.0, "weight_decay": 1e30, "steps": 12}),
    "learning rate zero in all but name": ("KL02", {"learning_rate": 1e-12, "beta": 0.04, "steps": 60}),
    "sampling nearly greedy": ("GR03", {"temperature": 0.05, "dataset": HALF_WRONG, "overrides": UNIFORM}),
    "reward paid for length": (
        "HK02",
        {
            "rewards": {"functions": [length, {"fn": "exact_match", "weight": 0.0}], "primary": "exact_match"},
            "max_completion_length": 60,
            "steps": 48,
            "learning_rate": 1e-3,
        },
    ),
}
QUICK = ("limit below the answers' length", "weights that overflow")


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in FAULTS]
)
def test_the_planted_fault_is_named_first(name, examine):
    expected, settings = FAULTS[name]
    diagnosis = examine(**settings)
    assert diagnosis.first is not None
    assert (diagnosis.first.id, diagnosis.alarming) == (expected, True), diagnosis.to_json()["findings"]


@pytest.mark.slow
def test_a_turn_that_ends_with_a_token_nobody_takes_for_an_end(examine, tmp_path):
    turn = tiny_tokenizer().convert_tokens_to_ids(TURN)
    diagnosis = examine(model=str(teach(tmp_path / "other", ending=turn)))
    assert diagnosis.first.id == "TR04", diagnosis.to_json()["findings"]
    assert f"special token {turn}" in diagnosis.first.evidence
    assert "TR01" in {item.id: item for item in diagnosis.findings if item.explained_by == "TR04"}
