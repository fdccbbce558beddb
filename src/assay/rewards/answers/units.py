"""Units of measurement: which words name the same one, and how many of a base unit it is."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

# dimension -> {canonical name: (size in the dimension's base unit, spellings)}
TABLE: dict[str, dict[str, tuple[str, str]]] = {
    "length": {
        "mm": ("1/1000", "mm millimeter millimetre"), "cm": ("1/100", "cm centimeter centimetre"),
        "dm": ("1/10", "dm decimeter decimetre"), "m": ("1", "m meter metre"), "km": ("1000", "km kilometer kilometre"),
        "in": ("127/5000", "in inch inches"), "ft": ("381/1250", "ft foot feet"), "yd": ("1143/1250", "yd yard"),
        "mi": ("201168/125", "mi mile"), "nm": ("1/1000000000", "nm nanometer nanometre"),
    },
    "mass": {
        "mg": ("1/1000000", "mg milligram"), "g": ("1/1000", "g gram gramme"), "kg": ("1", "kg kilogram kilo"),
        "t": ("1000", "tonne ton"), "lb": ("45359237/100000000", "lb pound"), "oz": ("45359237/1600000000", "oz ounce"),
    },
    "time": {
        "ms": ("1/1000", "ms millisecond"), "s": ("1", "s sec second"), "min": ("60", "min minute"),
        "h": ("3600", "h hr hour"), "day": ("86400", "day"), "week": ("604800", "week wk"),
        "month": ("2629746", "month"), "year": ("31556952", "year yr"),
    },
    "volume": {
        "ml": ("1/1000", "ml milliliter millilitre"), "l": ("1", "l L liter litre"),
        "gal": ("473176473/125000000", "gal gallon"),
        "qt": ("473176473/500000000", "qt quart"), "cup": ("473176473/2000000000", "cup"),
    },
    "dollars": {"dollar": ("1", "$ dollar usd buck"), "cent": ("1/100", "¢ cent")},
    "euros": {"euro": ("1", "€ euro eur")},
    "pounds sterling": {"gbp": ("1", "£ gbp quid"), "pence": ("1/100", "pence penny")},
    "yuan": {"yuan": ("1", "yuan rmb 元")},
    "yen": {"yen": ("1", "¥ yen jpy")},
    "rupees": {"rupee": ("1", "₹ rupee inr rs")},
    "angle": {"degree": ("1", "degree deg ^\\circ °"), "rad": ("0", "radian rad")},
    "speed": {"mph": ("1397/3125", "mph"), "kph": ("5/18", "kph kmh")},
    "data": {"bit": ("1", "bit"), "byte": ("8", "byte")},
    "force": {"N": ("1", "N newton")}, "energy": {"J": ("1", "J joule"), "kJ": ("1000", "kJ kilojoule")},
    "power": {"W": ("1", "W watt"), "kW": ("1000", "kW kilowatt")}, "frequency": {"Hz": ("1", "Hz hertz")},
}  # fmt: skip

KNOWN: dict[str, tuple[str, str, Fraction]] = {
    spelling: (dimension, name, Fraction(size))
    for dimension, members in TABLE.items()
    for name, (size, spellings) in members.items()
    for spelling in spellings.split()
}
FILLER = {
    "of",
    "the",
    "a",
    "an",
    "in",
    "per",
    "each",
    "total",
    "all",
    "altogether",
    "approximately",
    "about",
    "exactly",
}
MEASURE_WORDS = "元个個只条张本人名天年月岁次种块米厘分"
EXPONENT = re.compile(r"\s*(?:\^\s*\{?\s*(\d)\s*\}?|(\d))$")


@dataclass(frozen=True)
class Unit:
    """A unit as named, and, where it is a known one, its dimension and size (Fraction, 0 = not convertible)."""

    name: str
    dimension: str = ""
    size: Fraction = Fraction(0)


def look_up(word: str) -> tuple[str, str, Fraction] | None:
    """A known unit by any spelling, singular or plural."""
    for candidate in (word, word.lower(), word.lower().removesuffix("s"), word.lower().removesuffix("es")):
        if candidate in KNOWN:
            return KNOWN[candidate]
    return None


def read_unit(text: str) -> Unit | None:
    """The unit that a phrase names; None where the phrase says something else than a unit or a counted noun.

    >>> read_unit("square centimeters") == read_unit("cm^2")
    True
    >>> read_unit("km/h").name, read_unit("apples").name
    ('km/h', 'apple')
    """
    text = re.sub(r"\\frac\s*\{\s*([^{}]+?)\s*\}\s*\{\s*([^{}]+?)\s*\}", r"\1/\2", text)
    text = text.strip(" .").replace("{", "").replace("}", "")
    if not text or text[0].isdigit():
        return None
    power = 1
    lowered = text.lower()
    for word, value in (("square ", 2), ("sq ", 2), ("sq. ", 2), ("cubic ", 3), ("cu ", 3)):
        if lowered.startswith(word):
            power, text = value, text[len(word) :]
    if lowered.endswith(" squared") or lowered.endswith(" cubed"):
        power, text = (2 if lowered.endswith("squared") else 3), text.rsplit(" ", 1)[0]
    match = EXPONENT.search(text)
    if match and not text[: match.start()].endswith("/"):
        power, text = int(match.group(1) or match.group(2)), text[: match.start()]
    text = re.sub(r"\s+per\s+|\s*/\s*", "/", text.strip())
    parts = text.split("/")
    known = [look_up(part.strip()) for part in parts]
    if all(known) and len(parts) <= 2:
        return combine(known, power)  # type: ignore[arg-type]
    return noun(text)


def combine(known: list[tuple[str, str, Fraction]], power: int) -> Unit:
    (dimension, name, size), *rest = known
    if power > 1:
        dimension, name, size = f"{dimension}^{power}", f"{name}^{power}", size**power
    for other_dimension, other_name, other_size in rest:
        dimension, name = f"{dimension}/{other_dimension}", f"{name}/{other_name}"
        size = size / other_size if other_size else Fraction(0)
    return Unit(name, dimension, size)


def noun(text: str) -> Unit | None:
    """What is counted: a few plain words, or a CJK measure word."""
    if len(text) <= 3 and all(character in MEASURE_WORDS for character in text):
        return Unit(text)
    words = text.replace("-", " ").split()
    if not words or len(words) > 5 or not all(word.strip(".,'").isalpha() for word in words):
        return None
    if any(word.lower().strip(".,'") in NOT_UNITS for word in words):
        return None
    kept = [singular(word.lower().strip(".,'")) for word in words if word.lower() not in FILLER]
    return Unit(" ".join(kept)) if kept and (len(kept[0]) > 1 or not kept[0].isascii()) else None


WORDS_THAT_BEND = (
    "or and not no if else unless except between to from but plus minus times than least most less more greater "
    "over under either neither nor is are was when where for any some none true false otherwise maybe perhaps mod "
    "modulo with without choose factorial half third quarter billion million thousand "
)
NOT_UNITS = set(WORDS_THAT_BEND.split())


def singular(word: str) -> str:
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ches", "shes", "xes", "sses")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") and len(word) > 2 else word


def agree(one: Unit | None, other: Unit | None) -> Fraction | None:
    """The factor from `one` to `other` where they can measure the same thing, None where they cannot.

    A side without a unit agrees with anything. Counted nouns agree where one's words contain the other's.
    """
    if one is None or other is None or one.name == other.name:
        return Fraction(1)
    if one.dimension and other.dimension:
        same = one.dimension == other.dimension and one.size and other.size
        return one.size / other.size if same else None
    if one.dimension or other.dimension:
        _known, label = (one, other) if one.dimension else (other, one)
        return Fraction(1) if label.name in ("unit", "square unit", "cubic unit") else None
    words, others = set(one.name.split()), set(other.name.split())
    return Fraction(1) if words <= others or others <= words else None
