"""The page of all keys is what the code says."""

from pathlib import Path

from assay.config.reference import reference


def test_the_page_is_current():
    page = Path(__file__).parents[2] / "docs" / "configuration.md"
    assert page.read_text() == reference(), "run: python -m assay.config.reference > docs/configuration.md"
