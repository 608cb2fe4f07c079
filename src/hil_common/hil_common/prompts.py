"""Questions to the person: any node may ask, and never depends on an answer.

The asker keeps the time. Whether a console is there, was killed, or nobody looks at it: after the
time-out the default counts.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rclpy.node import Node

from hil_common import qos
from hil_common.diagnostics import STEADY
from hil_interfaces.msg import Prompt
from hil_interfaces.srv import AnswerPrompt

_LOOK_EVERY = 0.1
"""Seconds between two looks at the time."""

OnAnswer = Callable[[str, bool], None]
"""Told the choice that counts, and whether a person gave it."""


@dataclass
class _Question:
    message: Prompt
    due: float
    on_answer: OnAnswer


class Asker:
    """Publishes `prompt` and serves `~/answer` for one node. One open question at a time.

    Every method belongs to the thread of the node's executor.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._open: _Question | None = None
        self._publisher = node.create_publisher(Prompt, "prompt", qos.LATCHED)
        self._service = node.create_service(AnswerPrompt, "~/answer", self._on_answer)
        self._timer = node.create_timer(_LOOK_EVERY, self._look, clock=STEADY)

    def ask(
        self,
        text: str,
        choices: Sequence[str],
        default: str,
        timeout: float,
        on_answer: OnAnswer,
    ) -> str:
        """Ask; an earlier question that is still open is withdrawn. Returns the question's id.

        Args:
            text: the question.
            choices: what may be answered.
            default: the choice that counts when nobody answers within `timeout` s.
            timeout: s, more than 0.
            on_answer: called once, unless the question is withdrawn.

        Raises:
            ValueError: the default is none of the choices, or the time-out is not positive.
        """
        if default not in choices:
            raise ValueError(f"the default {default!r} is none of {', '.join(choices)}")
        if not timeout > 0.0:
            raise ValueError(f"the time-out has to be more than 0 s, not {timeout}")
        self.withdraw()
        message = Prompt(
            id=str(uuid.uuid4()),
            node=self._node.get_fully_qualified_name(),
            text=text,
            choices=list(choices),
            default_choice=default,
            timeout=float(timeout),
        )
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._open = _Question(message, time.monotonic() + timeout, on_answer)
        self._publisher.publish(message)
        return str(message.id)

    def withdraw(self) -> None:
        """Take an open question back; nobody is told an answer."""
        question, self._open = self._open, None
        if question is not None:
            self._say(question, Prompt.WITHDRAWN, "")

    def close(self) -> None:
        """Withdraw, and remove everything."""
        self.withdraw()
        self._node.destroy_timer(self._timer)
        self._node.destroy_service(self._service)
        self._node.destroy_publisher(self._publisher)

    def _look(self) -> None:
        question = self._open
        if question is not None and time.monotonic() >= question.due:
            self._settle(question, Prompt.EXPIRED, question.message.default_choice)

    def _on_answer(
        self, request: AnswerPrompt.Request, response: AnswerPrompt.Response
    ) -> AnswerPrompt.Response:
        question = self._open
        response.reason = _objection(question, request)
        response.ok = not response.reason
        if response.ok and question is not None:
            self._settle(question, Prompt.ANSWERED, request.choice)
        return response

    def _settle(self, question: _Question, state: int, answer: str) -> None:
        self._open = None
        self._say(question, state, answer)
        question.on_answer(answer, state == Prompt.ANSWERED)

    def _say(self, question: _Question, state: int, answer: str) -> None:
        question.message.state, question.message.answer = state, answer
        self._publisher.publish(question.message)


def _objection(question: _Question | None, request: AnswerPrompt.Request) -> str:
    if question is None or request.id != question.message.id:
        return "this question is not open any more"
    if request.choice not in question.message.choices:
        return f"'{request.choice[:40]}' is none of {', '.join(question.message.choices)}"
    return ""
