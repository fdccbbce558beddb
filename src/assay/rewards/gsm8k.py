"""The gold of GSM8K rows, in one place for data loading and verifying.

`answer` in openai/gsm8k is the whole rationale, ending in `#### 72`; compared as it is, it marks every row wrong.
"""

from __future__ import annotations

import re
from typing import Any

from assay.rewards.answers.compare import GoldUnreadable

CALCULATION = re.compile(r"<<[^<>]*>>")


def gsm8k_gold(answer: Any) -> str:
    """The final answer of a GSM8K `answer` column: what follows the last `####`, without grouping commas.

    A value that is already a bare answer comes back as it is. Raises GoldUnreadable (a ValueError) for a rationale
    without `####`: there is no telling which of its numbers is the answer.

    >>> gsm8k_gold("48/2 = <<48/2=24>>24 clips in May.\\n#### 1,072")
    '1072'
    >>> gsm8k_gold(18)
    '18'
    """
    text = str(answer).strip()
    if "####" in text:
        text = text.rsplit("####", 1)[1].strip()
        if not text:
            raise GoldUnreadable("nothing follows #### in the reference answer")
        return (
            text.split("\n")[0].strip().replace(",", "") if re.match(r"^[-$\d]", text) else text.split("\n")[0].strip()
        )
    if CALCULATION.search(text) or len(text.splitlines()) > 1:
        raise GoldUnreadable("the reference answer is a rationale without ####: which number is the answer is not said")
    return text
