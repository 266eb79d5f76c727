"""docs/advice.md lists every rule and figure there is."""

from __future__ import annotations

from tools.advice import PAGE, page
from traceana.advise import RULES
from traceana.advise.gates import METRICS


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run `python -m tools.advice`"


def test_ids_are_words_and_each_is_there_once() -> None:
    for ids in ([rule.id for rule in RULES], [metric.name for metric in METRICS]):
        assert len(set(ids)) == len(ids)
        assert all(one.isidentifier() and one.islower() for one in ids)


def test_every_rule_has_all_its_texts() -> None:
    for rule in RULES:
        assert all((rule.title, rule.sentence, rule.estimate, rule.caveat)), rule.id
        for change in (rule.change, *rule.variants.values()):
            assert all((change.pytorch, change.tensorflow, change.jax, change.native)), rule.id
