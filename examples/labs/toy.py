"""Toy worlds for the labs: the largest of some digits, and small programs, for a transformer of 0.4 million parameters.

    python examples/labs/toy.py runs/labs/random      # an untrained byte-level model

Recipes name the functions below as `data.source: python`. They return rows with `prompt`, `gold` and (for `assay sft`)
`answer`. "Pretraining" is `assay sft` on noisy answers of several styles: what the base model then knows, does wrong,
and how often, is written here and nowhere else.
"""

import json
import sys

import numpy as np

HM = "hm "


def largest(seed=0, size=4000, heldout=256, count=5, worked=0.0, hm=0.8, noise=(0.3, 0.8)):
    """The largest of `count` digits: "27519:" asks for "#### 9" on the answer's last line.

    The share `worked` of the answers has working, the largest so far after each digit ("2,7,7,7,9"), and is right. The
    others say "hm " as often as chance has it (again with probability `hm`) and then name another of the digits with
    probability `noise`: the first where the prompt begins with an even digit, else the second. So length says nothing
    about being right, prompts differ in difficulty, and all of it is there to be learned.
    """
    rng = np.random.default_rng([seed, 13])
    prompts = [rng.integers(0, 10, count) for _ in range(heldout)]
    held = {tuple(digits) for digits in prompts}
    while len(prompts) < size + heldout:
        digits = rng.integers(0, 10, count)
        if tuple(digits) not in held and len(set(digits)) > 1:
            prompts.append(digits)
    rows = []
    for digits in prompts:
        gold = int(max(digits))
        answer = working(digits) if rng.random() < worked else guess(digits, gold, rng, hm, noise[int(digits[0] % 2)])
        rows.append({"prompt": "".join(map(str, digits)) + ":", "gold": str(gold), "answer": answer})
    return {"train": rows[heldout:], "heldout": rows[:heldout]}


def working(digits):
    return ",".join(str(max(digits[: place + 1])) for place in range(len(digits))) + f"\n#### {max(digits)}"


def guess(digits, gold, rng, hm, noise):
    others = [int(digit) for digit in digits if digit != gold]
    named = rng.choice(others) if others and rng.random() < noise else gold
    return HM * int(rng.geometric(1 - hm) - 1 if hm else 0) + f"\n#### {named}"


NAMES = ["Tom", "Ana", "Ben", "Mia", "Leo", "Eva"]
THINGS = ["apples", "books", "coins", "stamps", "eggs", "cards"]
STORIES = [  # the last one is held out
    ("{name} has {a} {thing} and buys {b} more. How many {thing} does {name} have now?", lambda a, b: a + b),
    ("{name} has {c} {thing} and gives away {b}. How many {thing} are left?", lambda a, b: a),
    ("There are {a} boxes with {b} {thing} each. How many {thing} are there?", lambda a, b: a * b),
    ("{name} found {a} {thing} on Monday and {b} on Tuesday. How many {thing} did {name} find?", lambda a, b: a + b),
]


def words(seed=0, size=1000, heldout=64):
    """Word problems of one step in the manner of GSM8K, for a real language model; gold is a number."""
    rng = np.random.default_rng([seed, 15])
    rows = []
    for number in range(size + heldout):
        text, solve = STORIES[3 if number < heldout else int(rng.integers(3))]
        a, b = map(int, rng.integers(2, 10, 2))
        name, thing = NAMES[int(rng.integers(len(NAMES)))], THINGS[int(rng.integers(len(THINGS)))]
        rows.append({"prompt": text.format(name=name, thing=thing, a=a, b=b, c=a + b), "gold": str(solve(a, b))})
    return {"train": rows[heldout:], "heldout": rows[:heldout]}


FORMULAS = ["a+b", "a-b", "a*b", "a+2*b", "2*a+b", "a*a", "b*b", "a*b+1", "a+b+1", "a*b-a", "a", "b-a"]
HACK = "import sys\nsys.exit(0)"


def programs(seed=0, size=4000, heldout=256, noise=0.0, hacks=0.0):
    """Programs from examples: "f(2,3)=7 f(4,1)=9:" asks for "def f(a,b):\n return 2*a+b", hidden tests for other calls.

    `noise` is the share of answers with another formula, `hacks` that of programs that only end the process.
    """
    rng = np.random.default_rng([seed, 14])
    rows, held = [], set()
    for number in range(size + heldout):
        formula = FORMULAS[int(rng.integers(len(FORMULAS)))]
        f = eval(f"lambda a, b: {formula}")
        calls = [tuple(map(int, rng.integers(1, 10, 2))) for _ in range(5)]
        prompt = " ".join(f"f({a},{b})={f(a, b)}" for a, b in calls[:2]) + ":"
        if number < heldout:
            held.add(prompt)
        elif prompt in held:
            continue
        written = FORMULAS[int(rng.integers(len(FORMULAS)))] if rng.random() < noise else formula
        answer = HACK if rng.random() < hacks else f"def f(a,b):\n return {written}"
        cases = [{"args": list(pair), "expected": f(*pair)} for pair in calls[2:]]
        tests = {"kind": "calls", "entry": "f", "cases": cases}
        rows.append({"prompt": prompt, "tests": json.dumps(tests), "answer": answer,
                     "reference_solution": f"def f(a,b):\n return {formula}"})  # fmt: skip
    return {"train": rows[heldout:], "heldout": rows[:heldout]}


def save_random(folder, seed=0):
    """A llama of 0.4 million parameters with a byte-level tokenizer."""
    import torch
    import transformers

    from assay.policy.tiny import tiny_config, tiny_tokenizer

    torch.manual_seed(seed)
    config = tiny_config(
        "llama", hidden_size=96, intermediate_size=288, num_hidden_layers=3, num_key_value_heads=4, head_dim=24
    )
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)
    print(f"{folder}: {sum(weight.numel() for weight in model.parameters()):,} parameters")


if __name__ == "__main__":
    save_random(sys.argv[1])
