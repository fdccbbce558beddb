"""From every kind of source to a pool: columns, dialogue, split, overlap, limits, and errors that teach."""

import csv
import gzip
import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from assay.errors import InputError
from assay.prompts import DataOptions, FieldOptions, load_prompts
from assay.records import Outcome

ROWS = [{"question": f"What is {index} + {index}?", "answer": str(2 * index), "level": index} for index in range(20)]


def write(path: Path, rows=ROWS):
    if ".jsonl" in path.name:
        raw = "".join(json.dumps(row) + "\n" for row in rows).encode()
        path.write_bytes(gzip.compress(raw) if path.suffix == ".gz" else raw)
    elif path.suffix == ".json":
        path.write_text(json.dumps(rows))
    elif path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    else:
        with open(path, "w", newline="", encoding="utf-8-sig") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)
    return str(path)


def file_options(path, **changes):
    return DataOptions(source="file", path=str(path), **{"heldout_size": 4, **changes})


def questions(prompts):
    return [prompt.content if isinstance(prompt.content, str) else prompt.content[-1]["content"] for prompt in prompts]


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.json", "d.csv", "d.parquet"])
def test_every_file_format_gives_the_same_pool(tmp_path, tokenizer, name):
    pool = load_prompts(file_options(write(tmp_path / name)), tokenizer)
    assert sorted(questions(pool.train + pool.heldout)) == sorted(row["question"] for row in ROWS)
    assert (len(pool.train), len(pool.heldout)) == (16, 4)
    for prompt in pool.train + pool.heldout:
        first = questions([prompt])[0].split()[2]
        assert prompt.row["gold"] == str(2 * int(first))
        assert str(prompt.row["level"]) == first
        assert tokenizer.decode(prompt.token_ids).endswith(
            f"{questions([prompt])[0]}<|im_end|>\n<|im_start|>assistant\n"
        )
    assert pool.report.sources[0].columns["gold"] == "answer"


def test_a_pattern_reads_all_files_in_order(tmp_path, tokenizer):
    write(tmp_path / "b.jsonl", ROWS[10:])
    write(tmp_path / "a.jsonl", ROWS[:10])
    pool = load_prompts(file_options(tmp_path / "*.jsonl", heldout_size=0), tokenizer)
    assert questions(pool.train) == [row["question"] for row in ROWS]


def test_hub_call_on_a_local_dataset_with_and_without_streaming(tmp_path, tokenizer):
    write(tmp_path / "train.jsonl")
    options = {"source": "hub", "name": str(tmp_path), "heldout_size": 2}
    assert len(load_prompts(DataOptions(**options), tokenizer).train) == 18
    pool = load_prompts(DataOptions(**options, streaming=True, train_size=6), tokenizer)
    # 6 + 2 rows are streamed; a fifth of 8 is 1, so one of the other 7 is beyond the size asked for.
    assert (len(pool.train), len(pool.heldout), pool.report.sources[0].not_asked_for) == (6, 1, 1)
    assert any("first 8 rows" in line for line in pool.report.lines())


def test_hub_errors_name_the_dataset(tmp_path, tokenizer):
    write(tmp_path / "train.jsonl")
    with pytest.raises(InputError, match=r"split 'nope'.*cannot be loaded"):
        load_prompts(DataOptions(source="hub", name=str(tmp_path), split="nope"), tokenizer)
    with pytest.raises(InputError, match=r"no_such_owner/none.*cannot be loaded"):
        load_prompts(DataOptions(source="hub", name="no_such_owner/none"), tokenizer)
    with pytest.raises(InputError, match="train_size"):
        load_prompts(DataOptions(source="hub", name=str(tmp_path), streaming=True), tokenizer)


def test_reasoning_gym_rows_are_marked_by_its_own_scorer(tokenizer):
    pytest.importorskip("reasoning_gym")
    pool = load_prompts(
        DataOptions(
            source="reasoning_gym", name="leg_counting", train_size=10, heldout_size=5, options={"max_animals": 4}
        ),
        tokenizer,
    )
    assert (len(pool.train), len(pool.heldout)) == (10, 5)
    from assay.rewards import load_reward

    verifier = load_reward("reasoning_gym").verifier
    for prompt in pool.train:
        assert prompt.task == "leg_counting"
        answer = f"<answer>{prompt.row['gold']}</answer>"
        assert verifier.judge(answer, prompt.row["gold"], prompt.row).outcome is Outcome.CORRECT
        assert verifier.judge("<answer>-1</answer>", prompt.row["gold"], prompt.row).outcome is Outcome.WRONG
    with pytest.raises(InputError, match=r"close are .*leg_counting"):
        load_prompts(DataOptions(source="reasoning_gym", name="leg_count"), tokenizer)
    with pytest.raises(InputError, match="refuses"):
        load_prompts(DataOptions(source="reasoning_gym", name="leg_counting", options={"legs": 4}), tokenizer)


def test_python_source(tmp_path, tokenizer):
    (tmp_path / "made.py").write_text(
        "import itertools\n"
        "def rows(start=0, seed=None):\n"
        "    return ({'prompt': f'{seed}: {n}', 'gold': n} for n in itertools.count(start))\n"
        "def both():\n"
        "    return {'train': [{'prompt': 'a'}, {'prompt': 'b'}], 'heldout': [{'prompt': 'c'}]}\n"
        "def bad():\n"
        "    return ['text']\n"
    )
    place = f"{tmp_path / 'made.py'}"
    options = DataOptions(
        source="python", name=f"{place}:rows", options={"start": 7}, train_size=4, heldout_size=1, seed=9
    )
    pool = load_prompts(options, tokenizer)
    assert sorted(questions(pool.train + pool.heldout)) == ["9: 10", "9: 11", "9: 7", "9: 8", "9: 9"]
    pool = load_prompts(DataOptions(source="python", name=f"{place}:both"), tokenizer)
    assert (questions(pool.train), questions(pool.heldout)) == (["a", "b"], ["c"])
    for name, says in [("bad", "row 0 is a str"), ("none", "no function"), ("rows", "do not|cannot be called")]:
        wrong = {"options": {"stop": 1}} if name == "rows" else {}
        with pytest.raises(InputError, match=says):
            load_prompts(DataOptions(source="python", name=f"{place}:{name}", train_size=2, **wrong), tokenizer)
    with pytest.raises(InputError, match="must exist"):
        load_prompts(DataOptions(source="python", name=f"{tmp_path}/gone.py:rows"), tokenizer)


def test_an_endless_source_without_a_size_is_an_error_and_not_a_hang(tmp_path, tokenizer, monkeypatch):
    monkeypatch.setattr("assay.prompts.sources.MOST_ROWS", 1000)
    (tmp_path / "made.py").write_text("def rows():\n    while True:\n        yield {'prompt': 'again'}\n")
    with pytest.raises(InputError, match=r"has not ended; set data\.train_size"):
        load_prompts(DataOptions(source="python", name=f"{tmp_path}/made.py:rows"), tokenizer)


@pytest.mark.parametrize(
    ("content", "name", "says"),
    [
        ("", "d.jsonl", "has no rows"),
        ("{}\n[1]\n", "d.jsonl", "line 2"),
        ('{"question": "a"}\n{"question": \n', "d.jsonl", "line 2 is not valid JSON"),
        ('{"a": 1}', "d.json", "list of objects"),
        ("a,b\n1\n", "d.csv", "line 2"),
        ("no parquet", "d.parquet", "not a readable parquet"),
        ("x", "d.xml", "unknown kind"),
        ('{"text": "a"}\n', "d.jsonl", "columns text, none of them a prompt"),
        ('{"question": 5}\n', "d.jsonl", "holds a int"),
        ('{"messages": [{"role": "user"}]}\n', "d.jsonl", "message 0"),
        ('{"messages": [{"role": "human", "content": "a"}]}\n', "d.jsonl", "role 'human'"),
        ('{"question": ""}\n', "d.jsonl", "no training prompt is left"),
    ],
)
def test_bad_files_are_one_clear_line(tmp_path, tokenizer, content, name, says):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=says) as caught:
        load_prompts(file_options(tmp_path / name), tokenizer)
    assert "\n" not in str(caught.value)


def test_missing_things_are_named(tmp_path, tokenizer):
    with pytest.raises(InputError, match="does not exist"):
        load_prompts(file_options(tmp_path / "gone.jsonl"), tokenizer)
    with pytest.raises(InputError, match="matches no file"):
        load_prompts(file_options(tmp_path / "*.parquet"), tokenizer)
    path = write(tmp_path / "d.jsonl")
    with pytest.raises(InputError, match="did you mean answer"):
        load_prompts(file_options(path, fields=FieldOptions(gold="answr")), tokenizer)
    with pytest.raises(InputError, match=r"names \{quest\}"):
        load_prompts(file_options(path, template="Q: {quest}"), tokenizer)
    with pytest.raises(InputError, match=r"needs data\.path"):
        DataOptions(source="file")
    with pytest.raises(InputError, match="few_shot"):
        DataOptions(few_shot=({"question": "a"},))


def test_held_out_rows_survive_growth_reordering_and_another_size(tmp_path, tokenizer):
    def held(rows, **changes):
        return set(
            questions(load_prompts(file_options(write(tmp_path / "d.jsonl", rows), **changes), tokenizer).heldout)
        )

    first = held(ROWS)
    assert held(list(reversed(ROWS))) == first
    assert held(ROWS, train_size=3) == first
    assert held(ROWS, seed=1) != first
    more = [{"question": "What is 99 + 99?", "answer": "198"}]
    assert len(held(ROWS + more) & first) >= 3


def test_small_datasets_hold_out_at_most_a_fifth(tmp_path, tokenizer):
    pool = load_prompts(file_options(write(tmp_path / "d.jsonl", ROWS[:9]), heldout_size=128), tokenizer)
    assert (len(pool.train), len(pool.heldout)) == (8, 1)
    assert any("instead of 128" in line for line in pool.report.lines())


def test_overlap_is_dropped_reported_or_refused(tmp_path, tokenizer):
    passage = " ".join(f"word{index}" for index in range(15))
    train = [*ROWS[:5], {"question": f"{passage} and then?"}, {"question": "WHAT  is 19 + 19"}]
    held = [ROWS[19], {"question": f"So: {passage}, why?"}, {"question": "What is 3 - 3?"}]
    options = {"heldout_path": write(tmp_path / "h.jsonl", held), "heldout_size": 9}
    path = write(tmp_path / "t.jsonl", train)
    pool = load_prompts(file_options(path, **options), tokenizer)
    assert questions(pool.train) == [row["question"] for row in train[:6]]
    assert pool.report.overlap.identical_heldout == 1
    assert pool.report.overlap.shared_passage == 1
    assert pool.report.sources[0].overlapping == 1
    same, shared = pool.report.overlap.examples
    assert same == ("What is 19 + 19?", "WHAT  is 19 + 19", "all of it")
    assert shared == (f"So: {passage}, why?"[:120], f"{passage} and then?"[:120], " ".join(passage.split()[:13]))
    kept = load_prompts(file_options(path, **options, on_overlap="report"), tokenizer)
    assert len(kept.train) == 7
    with pytest.raises(InputError, match="1 training prompts are held out too"):
        load_prompts(file_options(path, **options, on_overlap="refuse"), tokenizer)


def test_too_long_prompts_are_counted_and_every_row_is_accounted_for(tmp_path, tokenizer):
    rows = [*ROWS, {"question": "x" * 400}, {"question": None}]
    options = file_options(write(tmp_path / "d.jsonl", rows), heldout_size=0, train_size=21, max_prompt_tokens=200)
    pool = load_prompts(options, tokenizer)
    report = pool.report.sources[0]
    assert (report.read, report.train, report.too_long, report.not_asked_for) == (22, 20, 1, 1)
    assert "1 too long" in pool.report.lines()[0]
    assert load_prompts(options, tokenizer, longest=10_000).report.sources[0].too_long == 1
    with pytest.raises(InputError, match=r"no training prompt is left: .* too long"):
        load_prompts(options, tokenizer, longest=5)


def test_duplicates_stay_and_conflicting_gold_is_reported(tmp_path, tokenizer):
    rows = [*ROWS, ROWS[0], {**ROWS[1], "answer": "wrong"}]
    pool = load_prompts(file_options(write(tmp_path / "d.jsonl", rows), heldout_size=0), tokenizer)
    assert len(pool.train) == 22
    assert (pool.report.duplicates, pool.report.conflicting_gold) == (2, 1)


def test_dialogue_of_system_prompt_few_shot_and_prefill(tmp_path, tokenizer):
    rows = [
        {"messages": [{"role": "system", "content": "old"}, {"role": "user", "content": "a"}]},
        {"messages": [{"role": "user", "content": "b"}, {"role": "assistant", "content": "So"}]},
    ]
    path = write(tmp_path / "d.jsonl", rows)
    shots = ({"prompt": "1?", "answer": "one"},)
    pool = load_prompts(file_options(path, heldout_size=0, system_prompt="new", few_shot=shots), tokenizer)
    text = [tokenizer.decode(prompt.token_ids) for prompt in pool.train]
    opening = (
        "<|im_start|>system\nnew<|im_end|>\n<|im_start|>user\n1?<|im_end|>\n<|im_start|>assistant\none<|im_end|>\n"
    )
    assert text[0] == opening + "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    assert text[1] == opening + "<|im_start|>user\nb<|im_end|>\n<|im_start|>assistant\nSo"
    plain = load_prompts(file_options(path, heldout_size=0), tokenizer)
    assert tokenizer.decode(plain.train[0].token_ids).startswith("<|im_start|>system\nold<|im_end|>")


def test_template_options_and_text_format(tmp_path, tokenizer):
    template = tmp_path / "t.jinja"
    template.write_text("{{ messages[-1].content }}{% if not enable_thinking %}<think></think>{% endif %}")
    path = write(tmp_path / "d.jsonl", [{"question": "a"}])
    options = {"heldout_size": 0, "chat_template": str(template)}
    for thinking, text in [(True, "a"), (False, "a<think></think>")]:
        pool = load_prompts(file_options(path, template_options={"enable_thinking": thinking}, **options), tokenizer)
        assert tokenizer.decode(pool.train[0].token_ids) == text
    shots = ({"prompt": "1?", "answer": "one"},)
    raw = load_prompts(file_options(path, heldout_size=0, format="text", few_shot=shots, system_prompt="Hi"), tokenizer)
    assert not raw.train[0].is_conversational
    assert tokenizer.decode(raw.train[0].token_ids) == "Hi\n\n1?\none\n\na"
    with pytest.raises(InputError, match=r"chat_template .* cannot be read"):
        load_prompts(file_options(path, chat_template=str(tmp_path / "none")), tokenizer)
    template.write_text("{{ raise_exception('no tools here') }}")
    with pytest.raises(InputError, match="no tools here"):
        load_prompts(file_options(path, **options), tokenizer)


def test_a_tokenizer_without_template_takes_text_and_refuses_messages(tmp_path):
    from assay.policy.tiny import tiny_tokenizer

    plain = tiny_tokenizer()
    plain.chat_template = None
    pool = load_prompts(file_options(write(tmp_path / "a.jsonl"), heldout_size=0), plain)
    assert plain.decode(pool.train[0].token_ids) == ROWS[0]["question"]
    with pytest.raises(InputError, match="no chat template"):
        load_prompts(file_options(tmp_path / "a.jsonl", format="chat"), plain)
    path = write(tmp_path / "b.jsonl", [{"messages": [{"role": "user", "content": "a"}]}])
    with pytest.raises(InputError, match="no chat template"):
        load_prompts(file_options(path, heldout_size=0), plain)


def test_template_over_columns_and_named_fields(tmp_path, tokenizer):
    path = write(tmp_path / "d.jsonl", [{"a": 3, "b": 4, "sum": 7, "kind": "add"}])
    fields = FieldOptions(gold="sum", task="kind")
    pool = load_prompts(file_options(path, heldout_size=0, template="{a} and {b}", fields=fields), tokenizer)
    assert questions(pool.train) == ["3 and 4"]
    assert (pool.train[0].row["gold"], pool.train[0].task, pool.train[0].row["task"]) == (7, "add", "add")


def test_mixture_inherits_overrides_and_shares_out(tmp_path, tokenizer):
    path = write(tmp_path / "d.jsonl")
    mixture = (
        {"name": "addition", "weight": 3, "system_prompt": "own"},
        {"source": "file", "path": path, "task": "doubles", "weight": 1, "fields": {"difficulty": "level"}},
    )
    pool = load_prompts(DataOptions(mixture=mixture, train_size=10, heldout_size=2, system_prompt="shared"), tokenizer)
    assert {prompt.task: prompt.content[0]["content"] for prompt in pool.train} == {
        "addition": "own",
        "doubles": "shared",
    }
    assert pool.task_weights == {"addition": 3.0, "doubles": 1.0}
    assert len(pool.heldout) == 4
    assert all(prompt.row["difficulty"] == prompt.row["level"] for prompt in pool.train if prompt.task == "doubles")
    with pytest.raises(InputError, match=r"data\.mixture\[0\]\.nmae; did you mean name"):
        load_prompts(DataOptions(mixture=({"nmae": "addition"},)), tokenizer)
    with pytest.raises(InputError, match="weights are"):
        load_prompts(DataOptions(mixture=({"name": "addition", "weight": 1}, {"name": "larger"})), tokenizer)


def test_rows_in_memory_take_the_place_of_the_source(tokenizer):
    pool = load_prompts(
        DataOptions(heldout_size=0), tokenizer, rows=ROWS, heldout_rows=[{"question": "other", "answer": 1}]
    )
    assert (len(pool.train), len(pool.heldout)) == (20, 0)
    pool = load_prompts(DataOptions(), tokenizer, rows=ROWS)
    assert len(pool.heldout) == 4
    with pytest.raises(InputError, match="no rows"):
        load_prompts(DataOptions(), tokenizer, rows=[])


def test_gsm8k_rationales_become_their_answers(tmp_path, tokenizer):
    rationale = "She sold 48/2 = <<48/2=24>>24 clips.\nIn all 1,048.\n#### 1,072"
    rows = [
        {"question": "How many?", "answer": rationale},
        {"question": "Title?", "answer": "#### is not a number sign\nno"},
    ]
    pool = load_prompts(file_options(write(tmp_path / "d.jsonl", rows), heldout_size=0), tokenizer)
    assert [prompt.row["gold"] for prompt in pool.train] == ["1072", rows[1]["answer"]]
    assert pool.train[0].row["answer"] == rationale
    assert any("follows ####" in line for line in pool.report.lines())
