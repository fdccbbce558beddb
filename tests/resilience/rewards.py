"""A reward that random text earns now and then, so that groups are mixed."""


def many_letters(completions, **kwargs):
    texts = [completion if isinstance(completion, str) else completion[-1]["content"] for completion in completions]
    return [len({letter for letter in text.lower() if letter.isalpha()}) / 8 for text in texts]
