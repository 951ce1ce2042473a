import pytest

from gateway.agents.documents import Rule, rule_for

RULES = (Rule("prod-*", "bedrock/converse"), Rule("*-chat", None, "describe"), Rule("Xy[12]", "openai/v1"))


@pytest.mark.parametrize(
    ("agent_id", "name", "expected"),
    [
        ("prod-1", "", RULES[0]),
        ("id", "prod-chat", RULES[0]),
        ("id", "my-chat", RULES[1]),
        ("Xy2", "n", RULES[2]),
        ("xy2", "n", None),
        ("Prod-1", "", None),
        ("", "", None),
    ],
)
def test_the_first_rule_that_matches_id_or_name(agent_id: str, name: str, expected: Rule | None) -> None:
    assert rule_for(agent_id, name, RULES) == expected


def test_an_unknown_name_matches_no_glob() -> None:
    assert rule_for("id", "", [Rule("?*x")]) is None
    assert rule_for("id", "", [Rule("")]) is None
