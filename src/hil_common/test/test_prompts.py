"""Questions to a person: answered, expired, withdrawn; nobody depends on a console."""

from __future__ import annotations

from typing import Any

import pytest

from hil_common import qos
from hil_common.prompts import Asker
from hil_common.testing import Ros, ros  # noqa: F401
from hil_interfaces.msg import Prompt
from hil_interfaces.srv import AnswerPrompt


class Person:
    """Sees the questions and answers them."""

    def __init__(self, ros: Ros) -> None:  # noqa: F811
        self.ros = ros
        self.seen: list[Any] = []
        node = ros.node("person")
        node.create_subscription(Prompt, "prompt", self.seen.append, qos.PROMPTS)
        self._client = node.create_client(AnswerPrompt, "/asker/answer")

    def sees(self, state: int) -> Any:
        return self.ros.wait_for(
            lambda: next((p for p in self.seen if p.state == state), None), what=f"state {state}"
        )

    def answer(self, question: str, choice: str) -> Any:
        return self.ros.call(self._client, AnswerPrompt.Request(id=question, choice=choice))


@pytest.fixture
def asker(ros: Ros) -> Asker:  # noqa: F811
    return Asker(ros.node("asker"))


def test_the_first_answer_counts(ros: Ros, asker: Asker) -> None:  # noqa: F811
    told: list[tuple[str, bool]] = []
    asker.ask("Was it?", ["yes", "no"], "no", 60.0, lambda *answer: told.append(answer))
    person = Person(ros)  # a late joiner
    question = person.sees(Prompt.OPEN)
    assert (question.node, list(question.choices)) == ("/asker", ["yes", "no"])
    assert "none of yes, no" in person.answer(question.id, "perhaps").reason
    assert "not open" in person.answer("another", "yes").reason
    assert told == []
    assert person.answer(question.id, "yes").ok
    assert person.sees(Prompt.ANSWERED).answer == "yes"
    assert told == [("yes", True)]
    assert not person.answer(question.id, "no").ok


def test_without_an_answer_the_default_counts(ros: Ros, asker: Asker) -> None:  # noqa: F811
    told: list[tuple[str, bool]] = []
    asker.ask("Was it?", ["yes", "no"], "no", 0.05, lambda *answer: told.append(answer))
    ros.wait_for(lambda: told)
    assert told == [("no", False)]
    assert Person(ros).sees(Prompt.EXPIRED).answer == "no"


def test_a_new_question_withdraws_the_old_one(ros: Ros, asker: Asker) -> None:  # noqa: F811
    person, told = Person(ros), list[tuple[str, bool]]()
    ros.wait_for(lambda: asker._publisher.get_subscription_count())
    asker.ask("First?", ["yes"], "yes", 60.0, lambda *answer: told.append(answer))
    second = asker.ask("Second?", ["yes"], "yes", 60.0, lambda *answer: told.append(answer))
    assert person.sees(Prompt.WITHDRAWN).text == "First?"
    assert person.answer(second, "yes").ok and told == [("yes", True)]


def test_what_cannot_be_asked(asker: Asker) -> None:
    with pytest.raises(ValueError, match="none of"):
        asker.ask("?", ["yes"], "no", 1.0, lambda *_: None)
    with pytest.raises(ValueError, match="time-out"):
        asker.ask("?", ["yes"], "yes", 0.0, lambda *_: None)
