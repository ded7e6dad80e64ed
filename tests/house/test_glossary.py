"""One word per thing: the words that the glossary sets as code in its last column are in no name."""

from tests.house.markdown import ROOT, code, table
from tests.house.source import modules, names, where, words

GLOSSARY = table(ROOT / "docs" / "glossary.md", "term", "meaning here", "in code", "don't say")


def test_the_glossary_forbids_something():
    assert len([word for row in GLOSSARY for word in code(row[3])]) > 30


def test_no_name_uses_a_word_that_the_glossary_forbids():
    instead = {word: row[0] for row in GLOSSARY for word in code(row[3])}
    wrong = [
        f"{where(path, line)} {name}: say '{instead[word]}'"
        for path in modules("app")
        for line, name in names(path)
        for word in sorted(words(name) & instead.keys())
    ]
    assert wrong == []


def test_no_term_is_forbidden_by_another():
    terms = {term for row in GLOSSARY for term in row[0].split(", ")}
    assert terms & {word for row in GLOSSARY for word in code(row[3])} == set()
