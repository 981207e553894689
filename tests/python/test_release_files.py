"""Files that accompany a release: their versions and forms."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


@pytest.fixture(scope="module")
def yaml():
    return pytest.importorskip("yaml")


def test_the_citation_has_the_version_and_license(yaml):
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    (version,) = re.findall(r"project\(colossal VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    assert citation["version"] == version
    (licence,) = re.findall(r'^license = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert citation["license"] == licence
    assert {"cff-version", "title", "message", "authors"} <= citation.keys()


@pytest.mark.parametrize("file", [form for form in FORMS if form.name != "config.yml"], ids=lambda file: file.name)
def test_issue_forms_can_be_shown(yaml, file):
    form = yaml.safe_load(file.read_text())
    assert {"name", "description", "body"} <= form.keys()
    assert len({element["id"] for element in form["body"]}) == len(form["body"])
    for element in form["body"]:
        assert element["type"] in ("input", "textarea", "dropdown", "checkboxes")
        assert element["attributes"]["label"]


def test_links_of_the_security_policy_lead_somewhere():
    text = (ROOT / "SECURITY.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (ROOT / target).is_file(), target
