"""Reward functions that fail loudly: the lecture's rewards under TRL's contract, on the library's verifiers.

    python examples/reward_functions.py --smoke
    python examples/reward_functions.py --full --model Qwen/Qwen3-1.7B

A reward function gets `completions` and every dataset column as keyword arguments, and returns one float or None a
completion; None says "not my row". The functions below can be named in a recipe, `examples/reward_functions.py:...`,
or handed to TRL. --smoke checks them on cases that break naive parsers. --full asks the first question before any run:
does the verifier pay for the dataset's own gold answers, written as the model would write them, and for nothing else?
"""

import argparse
import json
import sys

from assay.records import Outcome
from assay.rewards import load_reward
from assay.rewards.tampering import detect_hacks

GSM8K = load_reward({"fn": "gsm8k", "options": {"gold_column": "answer"}}).fn
FORMAT = load_reward({"fn": "format", "options": {"style": "think_box", "reward": 0.1}}).fn
SCHEMA, FIELDS = load_reward("email_schema").fn, load_reward("email_fields").fn


def correctness_reward(completions, answer, task, **columns):
    """GSM8K: 1.0 where the marked final answer is the number after #### in the raw `answer` column."""
    return only("gsm8k", task, GSM8K(completions=completions, answer=answer))


def format_reward(completions, task, **columns):
    """A small bonus for one reasoning block and a boxed answer; larger, and the model would optimise the form."""
    return only("gsm8k", task, FORMAT(completions=completions))


def schema_reward(completions, task, **columns):
    """1.0 where the completion is exactly one valid e-mail record."""
    return only("email_json", task, SCHEMA(completions=completions, task=task))


def field_reward(completions, task, gold, **columns):
    """0.2 for each of the five fields that equals gold's."""
    return only("email_json", task, FIELDS(completions=completions, task=task, gold=gold))


def only(wanted, task, rewards):
    """None for the rows of other tasks."""
    return [reward if name == wanted else None for name, reward in zip(task, rewards, strict=True)]


RATIONALE = "Tim has 4*18=<<4*18=72>>72 eggs.\n#### 72"
MARKED = {  # what a model may write -> what it must earn against 72
    "The answer is \\boxed{72}.": 1.0,
    "So it is 72.\n#### 72": 1.0,
    "\\boxed{\\$72.00}": 1.0,
    "\\boxed{72{,}000}": 0.0,
    "First \\boxed{71}, no: wait, \\boxed{72}.": 1.0,
    "\\boxed{72}. Checking again, it is \\boxed{71}.": 0.0,
    "I counted eggs and I think it is 72": 0.0,  # the last number is not an answer: the model would learn to guess
    "Is it 71 or 72? \\boxed{7": 0.0,
    "<think>\\boxed{72}</think> I give up.": 0.0,
    "<think>Four times eighteen.</think>\\boxed{72}": 1.0,
    "": 0.0,
}
RECORD = {
    "customer_name": "Ana Ruiz", "order_id": "ORD-12345", "issue_type": "refund", "refund_requested": True,
    "sentiment": "negative",
}  # fmt: skip
PLAIN = json.dumps(RECORD)
SCORED = [  # completion, schema reward, field reward
    (PLAIN, 1.0, 1.0),
    (f"```json\n{PLAIN}\n```", 1.0, 1.0),
    (f"Here you are: {PLAIN}", 0.0, 0.0),
    (json.dumps({**RECORD, "sentiment": "positive"}), 1.0, 0.8),
    (json.dumps({**RECORD, "sentiment": "furious"}), 0.0, 0.8),
    (json.dumps({**RECORD, "refund_requested": "true"}), 0.0, 0.8),
    (json.dumps({**RECORD, "order_id": "12345"}), 0.0, 0.8),
    (json.dumps({**RECORD, "note": "thanks"}), 0.0, 1.0),
    (json.dumps({key: RECORD[key] for key in list(RECORD)[:3]}), 0.0, 0.6),
    ("[]", 0.0, 0.0),
]
CHEATS = [
    "import sys\nsys.exit(0)\n",
    "import os\n\ndef add(a, b):\n    os._exit(0)\n",
    "class Same:\n    def __eq__(self, other):\n        return True\n\ndef add(a, b):\n    return Same()\n",
]
HONEST = [
    "def add(a, b):\n    return a + b\n",
    "def add(a, b):\n    return a - b\n",  # merely wrong
    "import sys\n\ndef main():\n    print(sum(map(int, sys.stdin.read().split())))\n\nmain()\n",
]


def check(what, found, expected):
    assert found == expected, f"{what}: {found}, expected {expected}"


def smoke():
    for text, expected in MARKED.items():
        check(repr(text), correctness_reward([text], [RATIONALE], ["gsm8k"]), [expected])
    check(
        "a rationale without ####", correctness_reward(["\\boxed{72}"], [RATIONALE.split("####")[0]], ["gsm8k"]), [None]
    )
    check("format", format_reward(["<think>4*18</think>\\boxed{72}", "\\boxed{72}"], ["gsm8k"] * 2), [0.1, 0.0])

    for text, schema, fields in SCORED:
        check(f"schema of {text}", schema_reward([text], ["email_json"]), [schema])
        check(f"fields of {text}", field_reward([text], ["email_json"], [RECORD]), [fields])
    messages = [{"role": "assistant", "content": PLAIN}]
    check("a conversational completion", schema_reward([messages], ["email_json"]), [1.0])

    mixed = {"task": ["gsm8k", "email_json", "essay"], "answer": [RATIONALE] * 3, "gold": [RECORD] * 3}
    texts = ["\\boxed{72}", PLAIN, "An essay."]
    check("routing of maths", correctness_reward(texts, **mixed), [1.0, None, None])
    check("routing of the schema", schema_reward(texts, **mixed), [None, 1.0, None])
    check("routing of fields", field_reward(texts, **mixed), [None, 1.0, None])

    for code in CHEATS:
        assert detect_hacks(code), f"not flagged: {code!r}"
    for code in HONEST:
        assert not detect_hacks(code), f"wrongly flagged: {code!r}: {detect_hacks(code)}"
    print(
        f"{len(MARKED)} answers, {len(SCORED)} records, 3 tasks, {len(CHEATS) + len(HONEST)} programs: all as expected"
    )


def full(options):
    """Mark the dataset's gold, sent through the model's tokenizer, and non-answers; 1 where the reward is not fit."""
    from transformers import AutoTokenizer

    from assay.rewards.audit import audit
    from assay.rewards.gsm8k import gsm8k_gold

    if options.rows:
        with open(options.rows, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
    else:
        from datasets import load_dataset

        rows = list(load_dataset("openai/gsm8k", "main", split="test"))
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    paid, unpaid = [], []
    for row in rows:
        text = f"<think>\nI work it out.\n</think>\n\n{GSM8K.render_gold(row['answer'], row)}"
        arrived = tokenizer.decode(tokenizer(text).input_ids, skip_special_tokens=True)
        mark = GSM8K.judge(arrived, row["answer"], row)
        (paid if mark.outcome is Outcome.CORRECT else unpaid).append((row, mark, arrived))
    GSM8K.close()
    attacked = audit("gsm8k", [{"gold": gsm8k_gold(row["answer"])} for row, _, _ in paid[:50]], tokenizer)
    print(f"gold in the model's format: {len(paid)} of {len(rows)} paid")
    print(f"answers that are none: {attacked.false_positives} of {sum(attacked.tried.values())} paid")
    for _, mark, arrived in unpaid[:5]:
        print(f"  {mark.outcome}: {mark.detail}: {arrived[-80:]!r}")
    return 0 if not unpaid and attacked.ok else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--smoke", action="store_true", help="edge cases, no model, no network")
    mode.add_argument("--full", action="store_true", help="the dataset's gold through a model's tokenizer")
    parser.add_argument("--model", default="Qwen/Qwen3-1.7B", help="whose tokenizer to use: a hub id or a folder")
    parser.add_argument("--rows", help="a JSONL file in GSM8K's format instead of the hub's test split")
    options = parser.parse_args()
    sys.exit(smoke() if options.smoke else full(options))
