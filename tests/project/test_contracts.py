# SPDX-License-Identifier: Apache-2.0
"""docs/contracts/*.md: every row of a table names tests, and they exist."""
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "contracts").glob("*.md"))
PYTHON = re.compile(r"(tests/[\w/.-]+\.py)::(\w+)")
NODE = re.compile(r'(tests/[\w/.-]+\.mjs): "((?:[^"\\]|\\.)+)"')


def rows(page):
    """The last cells of all tables but their heads."""
    cells, in_table = [], False
    for line in page.read_text().splitlines():
        if not line.startswith("|"):
            in_table = False
        elif set(line) <= set("|-: "):
            in_table = True
        elif in_table:
            cells.append((line, re.split(r"(?<!\\)\|", line.rstrip().rstrip("|"))[-1].replace(r"\|", "|")))
    return cells


def missing(cell):
    """What a cell names that is not there; one that names nothing counts as well."""
    tests = [(path, rf"^(?:    )?(?:async )?def {name}\(") for path, name in PYTHON.findall(cell)]
    tests += [(path, re.escape(title)) for path, title in NODE.findall(cell)]
    return [] if tests and all((ROOT / path).exists() and re.search(pattern, (ROOT / path).read_text(), re.M)
                               for path, pattern in tests) else [cell.strip()]


def test_there_is_a_page_for_each_contract():
    index = (ROOT / "docs" / "CONTRACTS.md").read_text()
    named = {name for name in re.findall(r"\(contracts/([\w-]+)\.md\)", index)}
    assert named == {page.stem for page in PAGES}
    for link in re.findall(r"\((frameworks/[\w-]+\.md)\)", index):
        assert (ROOT / "docs" / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_row_names_tests_that_exist(page):
    found = rows(page)
    assert found, "no table"
    assert [bad for _, cell in found for bad in missing(cell)] == []
