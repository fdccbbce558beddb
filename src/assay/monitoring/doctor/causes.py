"""Causes before symptoms: which finding produces which others by itself, and in which order findings are read."""

from __future__ import annotations

from collections.abc import Iterable

from assay.monitoring.doctor.finding import SEVERITIES, Finding

# From upstream to downstream. Of two findings that do not explain each other, the earlier is the likelier cause.
ORDER = (
    "OP01", "OP05", "SY01", "CK02", "GR05", "MM04", "RW07", "RW04", "RW06", "RW02", "RW01", "TR04", "RW05", "TR02",
    "TR01", "GR01", "GR02", "GR03", "OP02", "MM03", "MM05", "AS01", "MM02", "MM01", "OP03", "OP04", "KL02", "HK05",
    "HK03", "HK01", "RW03", "HK02", "TR03", "EN01", "EN02", "KL01", "HK04", "GR04", "AS02", "HK07", "EV02", "EV01",
    "EV03", "CK01", "SY02", "HK06",
)  # fmt: skip

_NO_SIGNAL = {"GR01", "GR02", "GR03", "GR04", "OP02", "EV01", "KL02", "RW03"}
_DYNAMICS = {"EN01", "EN02", "KL01", "TR02", "TR03", "HK04", "EV01", "EV02", "GR04"}
# cause -> what it brings about.
EXPLAINS: dict[str, set[str]] = {
    "OP01": set(ORDER) - {"OP01", "SY01", "CK02", "CK01", "SY02", "GR05"},
    "OP05": _NO_SIGNAL | _DYNAMICS | {"TR01", "TR04", "RW01", "OP03", "OP04", "MM01", "MM02"},
    "SY01": set(),
    "GR05": {"OP03", "EV01", "HK01", "GR03", "RW03", "KL02", "CK02"},
    "MM04": {"MM01", "MM02", "MM05", "KL01"},
    "RW07": _NO_SIGNAL | {"RW01", "RW04", "RW05", "RW06"},
    "RW04": _NO_SIGNAL | {"RW01", "RW05", "RW06", "SY02", "TR03"},
    "RW02": {"RW05", "RW01", "GR03"},
    "RW01": _NO_SIGNAL | {"RW02", "RW05"},
    "TR04": _NO_SIGNAL | {"TR01", "TR02", "RW01", "RW02", "RW05"},
    "RW05": _NO_SIGNAL,
    "TR02": {"TR01", "GR01", "KL01", "EN02", "GR04", "EV01", "EV02", "TR03", "RW01", "HK04", "HK01"},
    "TR01": _NO_SIGNAL | {"RW01", "RW02", "RW05", "TR03"},
    "GR01": {"OP02", "EV01", "KL02", "GR03", "GR04", "RW05", "RW03"},
    "GR02": {"OP02", "EV01", "KL02", "GR03", "GR04", "RW05", "EN01"},
    "GR03": {"OP02", "EV01", "KL02", "GR04"},
    "OP02": {"EV01", "KL02"},
    "MM03": {"MM01", "MM02", "MM05"},
    "MM05": {"MM01", "MM02", "AS01", "OP04"} | _DYNAMICS,
    "AS01": {"MM01", "MM02", "OP04", "AS02"} | _DYNAMICS,
    "MM02": {"EV01", "MM01"},
    "MM01": {"MM02", "OP04"} | _DYNAMICS,
    "OP03": {"KL01", "EN02", "EV02", "HK04"},
    "OP04": {"OP03", "MM01", "MM02"} | _DYNAMICS,
    "HK05": {"HK01", "HK06", "EV02", "HK03", "GR04", "GR02", "EN01"},
    "HK03": {"HK01", "EV02", "GR04", "GR02", "EN01"},
    "HK01": {"EV01", "EV02", "GR04", "GR02", "EN01"},
    "HK02": {"TR03", "HK01", "EV01", "EV02", "TR01"},
    "RW03": {"HK01", "EV01", "GR04", "KL01", "EV02", "GR01", "GR03"},
    "TR03": {"TR01", "EV01"},
    "EN01": {"GR04", "EV01", "HK04", "EV02", "GR03"},
    "EN02": {"HK04", "EV02", "TR01", "TR02", "KL01"},
    "KL01": {"EV02", "HK04"},
    "HK04": {"EV02", "EV01"},
}


def rank(findings: Iterable[Finding]) -> list[Finding]:
    """Most likely cause first; what another finding explains is marked and comes last. Information never explains."""
    place = {name: index for index, name in enumerate(ORDER)}
    ordered = sorted(findings, key=lambda item: place[item.id])
    causes: list[Finding] = []
    explained: list[Finding] = []
    for finding in ordered:
        cause = next(
            (
                other.id
                for other in ordered
                if other is not finding
                and other.severity != "info"
                and finding.id in EXPLAINS.get(other.id, set())
                # Where two would explain each other, the one upstream does.
                and (place[other.id] < place[finding.id] or other.id not in EXPLAINS.get(finding.id, set()))
                and other.id not in {item.id for item in explained}
            ),
            None,
        )
        if cause is None:
            causes.append(finding)
        else:
            explained.append(finding.demoted(cause))

    def key(finding: Finding) -> tuple[int, int]:
        return SEVERITIES.index(finding.severity), place[finding.id]

    return sorted(causes, key=key) + sorted(explained, key=key)
