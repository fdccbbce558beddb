"""One spelling for answers that mean the same: unicode, LaTeX wrappers, spacing, punctuation, currency.

Works on short strings only (callers cut at MAX_ANSWER characters); every replacement is linear in its input.
"""

from __future__ import annotations

import re
import unicodedata

MAX_ANSWER = 2000

SUPERSCRIPTS = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿ", "0123456789+-n"))
SUBSCRIPTS = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789"))
VULGAR = {
    "½": "1/2", "⅓": "1/3", "⅔": "2/3", "¼": "1/4", "¾": "3/4", "⅕": "1/5", "⅖": "2/5", "⅗": "3/5", "⅘": "4/5",
    "⅙": "1/6", "⅚": "5/6", "⅐": "1/7", "⅛": "1/8", "⅜": "3/8", "⅝": "5/8", "⅞": "7/8", "⅑": "1/9", "⅒": "1/10",
}  # fmt: skip
GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta kappa lambda mu nu xi rho sigma tau phi chi psi omega Gamma "
    "Delta Theta Lambda Xi Pi Sigma Phi Psi Omega "
)
CHARACTERS = str.maketrans({
    **dict.fromkeys("−–—‐‑‒﹣－", "-"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("\u00a0\u2009\u202f\u2002\u2003\u2007\u2008\u200a\u3000\t\n\r\f\v", " "),
    **dict.fromkeys("′’‘`", "'"), **dict.fromkeys("“”", '"'),
    **dict.fromkeys("。．", "."), **dict.fromkeys("，、", ","),
    "×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "∙": r"\cdot ", "÷": "/", "⁄": "/", "∕": "/",
    "±": r"\pm ", "∓": r"\mp ",
    "π": r"\pi ", "∞": r"\infty ", "°": r"^\circ ", "≤": r"\le ", "≥": r"\ge ", "≠": r"\neq ", "≈": r"\approx ",
    "∪": r"\cup ", "∩": r"\cap ", "∅": r"\emptyset ", "∈": r"\in ", "∉": r"\notin ", "ℝ": r"\mathbb{R}",
    "ℤ": r"\mathbb{Z}", "ℕ": r"\mathbb{N}", "ℚ": r"\mathbb{Q}", "ℂ": r"\mathbb{C}", "…": r"\ldots ", "→": r"\to ",
    "⟨": r"\langle ", "⟩": r"\rangle ", "∖": r"\setminus ", "∧": r"\wedge ", "∨": r"\vee ", "∠": r"\angle ",
    "⩽": r"\le ", "⩾": r"\ge ", "：": ":", "；": ";", "％": "%", "＄": "$", "￥": "¥", "﹪": "%",
    **{greek: rf"\{name} " for greek, name in zip(
        "αβγδεζηθκλμνξρστφχψωΓΔΘΛΞΠΣΦΨΩ",
        GREEK_NAMES.split())},
})  # fmt: skip

DROPPED_CONTENT = re.compile(
    r"\\(?:phantom|hphantom|vphantom|cancel|bcancel|xcancel|sout|hspace\*?|vspace\*?|require|label|tag\*?)\s*\{[^{}]*\}"
)
COLOUR = re.compile(r"\\(?:textcolor|color|colorbox)\s*\{[^{}]*\}")
FONT = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|textnormal|textsc|emph|mathrm|mathbf|mathit|mathsf|mathtt|mathnormal"
    r"|boldsymbol|bm|pmb|mbox|hbox|operatorname\*?|underline|mathop|ensuremath|boxed|fbox)\s*\{((?:[^{}\\]|\\.)*)\}"
)
SIZES = re.compile(
    r"\\(?:left|right|middle|bigl|bigr|Bigl|Bigr|biggl|biggr|Biggl|Biggr|big|Big|bigg|Bigg|displaystyle|textstyle"
    r"|scriptstyle|limits|nolimits|bf|rm|it|boldmath|normalsize|large|Large|huge|mathstrut|strut|allowbreak)(?![A-Za-z])\s*\.?(?<!\d\.)"
)
SPACES = re.compile(r"\\(?:quad|qquad|enspace|thinspace|space|nobreakspace)(?![A-Za-z])|\\[,;:> ]|(?<!\\)~|\\/")
GRID_SPACES = re.compile(r"\\(?:quad|qquad|enspace|thinspace|space|nobreakspace)(?![A-Za-z])|(?<!\\)\\[,;:>]|(?<!\\)~")
LINE_BREAK = "\x1e"
SYNONYMS = (
    (re.compile(r"\\(?:dfrac|tfrac|cfrac|nicefrac|sfrac)(?![A-Za-z])"), r"\\frac"),
    (re.compile(r"\\(?:leqslant|leq|leqq)(?![A-Za-z])"), r"\\le "),
    (re.compile(r"\\(?:geqslant|geq|geqq)(?![A-Za-z])"), r"\\ge "),
    (re.compile(r"\\(?:ne|not\s*=)(?![A-Za-z])"), r"\\neq "),
    (re.compile(r"\\not\s*\\in(?![A-Za-z])"), r"\\notin "),
    (re.compile(r"\\(?:varnothing|O)(?![A-Za-z])"), r"\\emptyset "),
    (re.compile(r"\\(?:backslash|smallsetminus)(?![A-Za-z])"), r"\\setminus "),
    (re.compile(r"\\(?:lbrace)(?![A-Za-z])"), r"\\{"),
    (re.compile(r"\\(?:rbrace)(?![A-Za-z])"), r"\\}"),
    (re.compile(r"\\(?:lbrack)(?![A-Za-z])"), "["),
    (re.compile(r"\\(?:rbrack)(?![A-Za-z])"), "]"),
    (re.compile(r"\\(?:lvert|rvert|vert)(?![A-Za-z])"), "|"),
    (re.compile(r"\\(?:colon)(?![A-Za-z])"), ":"),
    (re.compile(r"\\(?:dots|cdots|dotsc|dotsb)(?![A-Za-z])|\.\.\."), r"\\ldots "),
    (re.compile(r"\\(?:simeq|thickapprox|doteq|approxeq|fallingdotseq)(?![A-Za-z])"), r"\\approx "),
    (re.compile(r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])"), r"^\\circ "),
    (re.compile(r"\\(?:Re|R)(?![A-Za-z])|\\mathbb\s*R(?![A-Za-z])|\\mathbf\s*\{\s*R\s*\}"), r"\\mathbb{R}"),
    (re.compile(r"\\(?:euro|EUR)(?![A-Za-z])(?:\{\})?"), "€"),
    (re.compile(r"\\pounds(?![A-Za-z])(?:\{\})?"), "£"),
    (re.compile(r"\\[%$€£¥₹&#_]"), lambda match: match.group()[1] if match.group()[1] != "_" else "_"),
    (re.compile(r"\\to(?![A-Za-z])"), r"\\to "),
)  # fmt: skip
SHORT_FRACTION = re.compile(r"\\frac\s*(?:(\d)\s*(\d)|(\d)\s*(\{[^{}]*\})|(\{[^{}]*\})\s*(\d))")
BARE_FRACTION = re.compile(r"(?<![\\A-Za-z])frac(?=\s*\{)")
COMMENT = re.compile(r"(?<=\s)%\s*\S.*$")
DELIMITERS = re.compile(r"\\\(|\\\)|\\\[|\\\]|\$\$")
ENVIRONMENT = re.compile(
    r"\\(begin|end)\{(aligned|align\*?|cases|gathered|split|equation\*?|rcases)\}(?:\{[lcr| ]*\})?"
)
TRAILING = " .,;:?\\"


def unicode_to_latex(text: str) -> str:
    """Typographic characters as their LaTeX or ASCII spelling; digits of any script as ASCII."""
    if text.isascii():
        return " ".join(text.split()) if "\n" in text or "\t" in text else text
    text = re.sub(
        "[" + "".join(SUPERSCRIPTS) + "]+",
        lambda m: "^{" + "".join(map(SUPERSCRIPTS.__getitem__, m.group())) + "}",
        text,
    )
    text = re.sub(
        "[" + "".join(SUBSCRIPTS) + "]+", lambda m: "_{" + "".join(map(SUBSCRIPTS.__getitem__, m.group())) + "}", text
    )
    text = re.sub("[" + "".join(VULGAR) + "]", lambda m: f" {VULGAR[m.group()]} ", text)
    text = re.sub(r"√\s*(\d+(?:\.\d+)?|[A-Za-z])", r"\\sqrt{\1}", text)
    text = re.sub(r"√\s*(?=[({])", r"\\sqrt", text)
    text = text.translate(CHARACTERS)
    text = unicodedata.normalize("NFKC", text).translate(CHARACTERS)
    digits = (str(unicodedata.digit(c)) if c.isdigit() and not c.isascii() else c for c in text)
    return "".join(digits)


def strip_wrappers(text: str) -> str:
    """Without fonts, colours, sizes and invisible content; `\\text{cm}` becomes ` cm` so that it stays a word."""
    text = DROPPED_CONTENT.sub(" ", text)
    text = COLOUR.sub("", text)
    for _ in range(8):
        replaced = FONT.sub(unwrap_font, text)
        if replaced == text:
            break
        text = replaced
    return text


def unwrap_font(match: re.Match[str]) -> str:
    content = match.group(1)
    if match.group().startswith(("\\text", "\\mbox", "\\hbox")) and content[:1].isalpha():
        return f" {content} "
    if len(content) > 1 and content[:1].isalpha():
        return f" {content} "
    return content


def normalise(text: str) -> str:
    """The normal spelling of an answer or a gold.

    >>> normalise("\\\\text{ } $\\\\dfrac12$.")
    '\\\\frac{1}{2}'
    >>> normalise("１，２３４ ％")
    '1,234 %'
    """
    text = unicode_to_latex(text).replace("{,}", ",").replace("{:}", ":")
    if text.isalnum():
        return text
    text = COMMENT.sub("", text)
    if "\\" in text or "~" in text:
        text = normalise_latex(text)
    text = re.sub(r"\$(?!\s*[\d.])|(?<=[\d}])\$", "", text) if "$" in text else text
    text = (
        text.replace("**", "^") if re.search(r"[\w)]\*\*[\w(-]", text) else text.replace("*" * 2, "").replace("__", "")
    )
    text = BARE_FRACTION.sub(r"\\frac", text)
    if "\\frac" in text:
        text = SHORT_FRACTION.sub(full_fraction, text)
    text = " ".join(text.split())
    return trim(text)


def normalise_latex(text: str) -> str:
    text = text.replace("\\!", "").replace("\\\\", LINE_BREAK)
    text = strip_wrappers(text)
    text = DELIMITERS.sub(" ", text)
    text = SIZES.sub("", text)
    is_grid = "matrix}" in text or "array}" in text
    if not is_grid and "\\begin" in text:
        text = ENVIRONMENT.sub("", text).replace("&", "").strip(f" {LINE_BREAK}").replace(LINE_BREAK, " , ")
    text = text.replace(LINE_BREAK, r" \\ " if is_grid else " ")
    for pattern, replacement in SYNONYMS:
        text = pattern.sub(replacement, text)
    return SPACES.sub(" ", text) if not is_grid else GRID_SPACES.sub(" ", text)


def full_fraction(match: re.Match[str]) -> str:
    numerator = match.group(1) or match.group(3) or match.group(5).strip("{}")
    denominator = match.group(2) or (match.group(4) or "").strip("{}") or match.group(6)
    return rf"\frac{{{numerator}}}{{{denominator}}}"


def trim(text: str) -> str:
    """Without trailing punctuation, markdown emphasis, and braces or brackets around everything."""
    while True:
        before = text
        text = text.strip().rstrip(TRAILING).lstrip(" ,;:").strip("`")
        if text[:1] == "*" and text[-1:] == "*":
            text = text.strip("*")
        if text[:1] == "{" and closes_at_end(text, "{", "}"):
            text = text[1:-1]
        if text == before:
            return text


def closes_at_end(text: str, opening: str, closing: str) -> bool:
    """Whether the first character's bracket closes with the last character.

    >>> closes_at_end("{a}{b}", "{", "}"), closes_at_end("{a{b}}", "{", "}")
    (False, True)
    """
    depth = 0
    escaped = False
    for position, character in enumerate(text):
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character == opening:
            depth += 1
        elif character == closing:
            depth -= 1
            if depth == 0:
                return position == len(text) - 1
    return False
