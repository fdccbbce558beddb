"""From a dataset row to what the model reads: the dialogue around the question, and its tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from assay.errors import InputError
from assay.prompts.options import DataOptions, SourceOptions
from assay.records import Media, Messages, Prompt, content_key

ROLES = ("system", "developer", "user", "assistant", "tool")


class Renderer:
    """Turns content into tokens the same way for every prompt of a run.

    `tokenizer` is a transformers tokenizer. A text prompt becomes a user message if `format` is chat, or auto and the
    tokenizer has a chat template; otherwise its text is tokenised as it is.
    """

    def __init__(self, options: DataOptions, tokenizer: Any) -> None:
        self.options = options
        self.tokenizer = tokenizer
        self.template = read_template(options.chat_template)
        self.has_template = bool(self.template or getattr(tokenizer, "chat_template", None))
        if options.format == "chat" and not self.has_template:
            raise InputError(
                "data.format is chat, but the model's tokenizer has no chat template; "
                "set data.chat_template to a Jinja file or data.format to text"
            )

    def content(self, question: str | Messages, source: SourceOptions) -> str | Messages:
        """The question with its system prompt and worked examples, as messages or as one text."""
        if isinstance(question, str) and not (
            self.options.format == "chat" or (self.options.format == "auto" and self.has_template)
        ):
            shots = [f"{example['prompt']}\n{example['answer']}" for example in source.few_shot]
            return "\n\n".join([*([source.system_prompt] if source.system_prompt else []), *shots, question])
        messages = [{"role": "user", "content": question}] if isinstance(question, str) else list(question)
        opening: Messages = []
        if source.system_prompt:
            if messages[0]["role"] == "system":
                messages = messages[1:]
            opening.append({"role": "system", "content": source.system_prompt})
        elif messages[0]["role"] == "system":
            opening.append(messages[0])
            messages = messages[1:]
        for example in source.few_shot:
            opening += [
                {"role": "user", "content": example["prompt"]},
                {"role": "assistant", "content": example["answer"]},
            ]
        return opening + messages

    def tokens(self, content: str | Messages) -> tuple[int, ...]:
        """Token ids; a dialogue that ends with an assistant message is continued instead of answered."""
        if isinstance(content, str):
            return tuple(self.tokenizer(content)["input_ids"])
        if not self.has_template:
            raise InputError(
                "the prompts are messages, but the model's tokenizer has no chat template; "
                "set data.chat_template to a Jinja file, or give prompts as text"
            )
        prefilled = content[-1]["role"] == "assistant"
        try:
            ids = self.tokenizer.apply_chat_template(
                content,
                tokenize=True,
                return_dict=False,
                add_generation_prompt=not prefilled,
                continue_final_message=prefilled,
                **({"chat_template": self.template} if self.template else {}),
                **self.options.template_options,
            )
        except Exception as error:
            if type(error).__module__.split(".")[0] != "jinja2":
                raise
            raise InputError(
                f"the chat template refuses the prompt that starts {str(content[0])[:80]!r}: {error}"
            ) from error
        return tuple(ids)

    def prompt(
        self,
        question: str | Messages,
        row: Mapping[str, Any],
        task: str,
        source: SourceOptions,
        media: tuple[Media, ...] = (),
    ) -> Prompt:
        content = self.content(question, source)
        return Prompt(content, self.tokens(content), row, media, task, content_key(content, media))


def read_template(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"data.chat_template {path!r} cannot be read: {error.strerror}; give a Jinja file") from error


def check_messages(value: Sequence[Any], where: str) -> Messages:
    """The messages of a conversational prompt, or an InputError that says what is wrong with them."""
    for number, message in enumerate(value):
        if not isinstance(message, Mapping) or "role" not in message or "content" not in message:
            raise InputError(f"{where}: message {number} is {str(message)[:80]!r}; a message has role and content")
        if message["role"] not in ROLES:
            raise InputError(
                f"{where}: message {number} has role {message['role']!r}; known roles are {', '.join(ROLES)}"
            )
    return [dict(message) for message in value]
