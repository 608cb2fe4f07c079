"""Listing spool files, and importing what was set aside."""

from __future__ import annotations

import functools

import pytest
from rclpy.serialization import deserialize_message, serialize_message

from hil_actor import spool_tool
from hil_actor.sender import Reply, Status
from hil_actor.spool import Spool, SpoolOptions
from hil_actor.spool_file import SpoolError, SpoolFile
from hil_actor.spool_tool import NotImported, send
from hil_actor.step_store import Stream
from hil_interfaces.msg import Step

GENEROUS = 30.0
SPEC = "spec"


class Learner:
    """The rule of insert_steps for one run; breaks off or loses answers when told to."""

    def __init__(self, run_id="run", spec=SPEC):
        self.run_id, self.spec = run_id, spec
        self.stored: dict[str, list[bytes]] = {}
        self.die_after = -1
        self.lose = 0

    def ready(self):
        return True

    def interrupt(self):
        pass

    def insert(self, stream, steps, timeout):
        if stream.run_id != self.run_id:
            return Reply(Status.WRONG_RUN, "another run", self.run_id, 0, 1)
        if stream.fingerprint != self.spec:
            return Reply(Status.WRONG_SPEC, "another specification", self.run_id, 0, 1)
        stored = self.stored.setdefault(stream.session, [])
        for step in steps:
            message = deserialize_message(step.data, Step)
            named = (message.run_id, message.session, message.seq)
            assert named == (self.run_id, stream.session, step.seq)
            if step.seq == len(stored) + 1:
                if len(stored) == self.die_after:
                    raise TimeoutError("the learner did not answer")
                stored.append(step.data)
            else:
                assert step.seq <= len(stored)
        if self.lose:
            self.lose -= 1
            raise TimeoutError("no answer")
        return Reply(Status.OK, "", self.run_id, len(stored), len(stored) + 1)


@functools.cache  # two serializations differ in their padding
def record(session, seq, run="run"):
    return bytes(
        serialize_message(
            Step(run_id=run, fingerprint=SPEC, actor_id="actor", session=session, seq=seq)
        )
    )


def leave(folder, session="s1", steps=5, acknowledged=2):
    spool = Spool(folder, "actor", SpoolOptions(keep_steps=0))
    spool.begin(Stream("run", SPEC, "actor", session))
    for seq in range(1, steps + 1):
        spool.append(record(session, seq))
    assert spool.settle(GENEROUS)
    spool.acknowledge(acknowledged)
    assert spool.close(GENEROUS) == 0
    return spool.path


def import_into(path, learner, into_run=""):
    file = SpoolFile(path)
    try:
        return send(file, file.sessions(), learner, into_run)
    finally:
        file.close()


def test_what_waits_is_sent_under_its_own_name_and_waits_no_more(tmp_path):
    path = leave(tmp_path)
    leave(tmp_path, "s2", steps=3, acknowledged=0)
    learner = Learner()
    learner.stored["s1"] = [record("s1", 1), record("s1", 2)]
    learner.lose = 2
    assert import_into(path, learner) == 6
    assert learner.stored["s1"] == [record("s1", k) for k in range(1, 6)]
    assert learner.stored["s2"] == [record("s2", k) for k in range(1, 4)]
    assert import_into(path, learner) == 0
    assert "0 steps" in spool_tool.describe(path)


def test_another_run_refuses_unless_it_is_named(tmp_path):
    path = leave(tmp_path)
    learner = Learner("new")
    with pytest.raises(NotImported, match=r"trains run 'new'.*--into-run new"):
        import_into(path, learner)
    assert not learner.stored
    assert import_into(path, learner, "new") == 3
    ((session, stored),) = learner.stored.items()
    assert session == "s1@3" and len(stored) == 3


def test_an_import_that_was_broken_off_goes_on_without_repeats(tmp_path):
    path = leave(tmp_path, steps=9)
    learner = Learner("new")
    learner.die_after = 3
    with pytest.raises(NotImported, match="did not answer"):
        import_into(path, learner, "new")
    learner.die_after = -1
    assert import_into(path, learner, "new") == 7
    ((_, stored),) = learner.stored.items()
    assert [deserialize_message(d, Step).seq for d in stored] == list(range(1, 8))


def test_another_specification_is_refused_in_any_case(tmp_path):
    path = leave(tmp_path)
    learner = Learner(spec="other")
    with pytest.raises(NotImported, match="another specification"):
        import_into(path, learner)


def test_steps_that_the_learner_wants_and_nobody_has_are_named(tmp_path):
    path = leave(tmp_path)
    with pytest.raises(NotImported, match=r"wants step 1, .* has 3 to 5"):
        import_into(path, Learner())


def test_rubbish_is_not_readdressed(tmp_path):
    spool = Spool(tmp_path, "actor")
    spool.begin(Stream("run", SPEC, "actor", "s"))
    spool.append(b"\x00")
    assert spool.close(GENEROUS) == 0
    with pytest.raises(NotImported, match="step 1 is not a serialized Step"):
        import_into(spool.path, Learner("new"), "new")


def test_the_list_names_every_file(tmp_path, capsys):
    assert spool_tool.main(["list", str(tmp_path)]) == 0
    assert "no spool files" in capsys.readouterr().out
    path = leave(tmp_path)
    (tmp_path / "odd.sqlite").write_text("this is no database, but long enough to be read as one")
    assert spool_tool.main(["list", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{path}: 3 steps") and "run run" in lines[0]
    assert "odd.sqlite: file is not a database" in lines[1]


def test_a_spool_in_use_is_left_alone(tmp_path, capsys):
    spool = Spool(tmp_path, "actor")
    assert spool_tool.main(["import", str(spool.path)]) == 1
    assert "no such file" in capsys.readouterr().err
    spool.begin(Stream("run", SPEC, "actor", "s"))
    assert spool_tool.main(["import", str(spool.path)]) == 1
    assert "in use by another process" in capsys.readouterr().err
    with pytest.raises(SpoolError):
        Spool(tmp_path, "actor")
    spool.close(GENEROUS)
