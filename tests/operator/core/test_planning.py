"""`plan`: its laws over arbitrary fleets, and one case for each reason why a source is not written."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mx_operator.core import gates
from mx_operator.core.gates import Gate, Phase
from mx_operator.core.joins import index
from mx_operator.core.marks import mark, nonce_of
from mx_operator.core.memory import NEVER, Memory, RowMemory
from mx_operator.core.model import Identity, Listing, Row, Sample, SourceKey
from mx_operator.core.planning import Decision, Limits, Plan, Task, plan
from mx_operator.core.rules import Rules, strictest
from mx_operator.core.targets import Answer, State, measure
from mx_operator.policies.spec import (
    Combine,
    Mode,
    Models,
    Prometheus,
    Server,
    Signal,
    SourceLoadPolicy,
    Unmeasured,
    Writer,
)

NOW = 1000.0
OPEN = Gate(Phase.OPEN)
SIGNAL = Signal("s", "q", join_label="mx_source_id")
POLICY = SourceLoadPolicy("p", Server("mx:8001"), Prometheus("http://prometheus"), (SIGNAL,))


def key(n: int) -> SourceKey:
    return SourceKey(f"{n:016x}", f"w{n}")


def row(n: int = 0, load: float | None = None, model: str = "m", ms: int = 1000) -> Row:
    return Row(key(n), 3, model, ms, load)


def known(n: int = 0, **changes: object) -> RowMemory:
    base = RowMemory(3, None, 1000, NOW - 500, heartbeat_at=NOW - 5)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def answer(values: dict[int, float], age: float = 1.0, since: float = 0.0, signal: Signal = SIGNAL) -> Answer:
    samples = [Sample({"mx_source_id": key(n).mx_source_id, "worker_id": f"w{n}"}, v, age) for n, v in values.items()]
    return Answer(index(signal, samples), since=since)


def planned(
    rows: list[Row],
    *tasks: Task,
    memories: dict[SourceKey, RowMemory] | None = None,
    gate: Gate = OPEN,
    rules: Rules | None = None,
    budget: int = 200,
    denied: bool = False,
    measured_at: dict[SourceKey, float] | None = None,
    seed: int = 0,
) -> Plan:
    if memories is None:
        memories = {each.key: known() for each in rows}
    memory = Memory(memories, NOW, 1000, measured_at or {}, gate)
    rules = rules or strictest([task.policy for task in tasks])
    listing = Listing(NOW - 0.1, NOW, tuple(rows))
    limits = Limits(budget, denied)
    return plan(listing, memory, {}, tasks, rules, limits, NOW, random.Random(seed))


def only(made: Plan) -> Decision:
    (decision,) = made.decisions
    return decision


def one(value: float = 0.7, stored: float | None = None, **arguments: object) -> Decision:
    memory = arguments.pop("memory", None)
    policy = arguments.pop("policy", POLICY)
    memories = {key(0): memory} if memory is not None else None
    task = Task(policy, (answer({0: value}),))  # type: ignore[arg-type]
    return only(planned([row(load=stored)], task, memories=memories, **arguments))  # type: ignore[arg-type]


def test_a_source_that_differs_is_written_with_its_own_rank_and_a_fresh_mark() -> None:
    stored = mark(0.2, 9)
    made = planned([row(load=stored)], Task(POLICY, (answer({0: 0.7}),)))
    (write,) = made.writes
    assert (write.key, write.worker_rank, write.policy, write.reason) == (key(0), 3, "p", "load")
    assert abs(write.load - 0.7) <= 0.002
    assert nonce_of(write.load) == write.nonce != 9
    assert write.send_before == NOW - 5 + 27
    assert write.answer_before == NOW - 5 + 29
    assert only(made).write


CASES: dict[str, tuple[str, dict[str, object]]] = {
    "within the deadband": ("unchanged", {"value": 0.7, "stored": 0.66}),
    "no heartbeat was seen": ("no_heartbeat_yet", {"memory": known(heartbeat_at=None)}),
    "the window is over": ("window_closed", {"memory": known(heartbeat_at=NOW - 27.1)}),
    "mode observe": ("observe", {"policy": dataclasses.replace(POLICY, mode=Mode.OBSERVE)}),
    "the server drops loads": ("load_not_supported", {"gate": gates.closed(NOW)}),
    "canaries are out": ("canary", {"gate": gates.sent(gates.UNTRIED, 3, NOW - 1)}),
    "credentials were refused": ("writes_denied", {"denied": True}),
    "no budget": ("budget", {"budget": 0}),
    "more than one rank": ("multi_rank", {"memory": known(many_ranks=True)}),
    "NaN": ("not_finite", {"value": math.nan}),
    "infinite": ("not_finite", {"value": math.inf}),
}


@pytest.mark.parametrize("name", CASES)
def test_why_a_source_is_not_written(name: str) -> None:
    reason, arguments = CASES[name]
    decision = one(**arguments)  # type: ignore[arg-type]
    assert (decision.reason, decision.write) == (reason, False)


def test_a_stale_sample_is_no_reading_however_it_got_old() -> None:
    for answered in (
        answer({0: 0.7}, age=40.1),
        answer({0: 0.7}, age=30.0, since=10.1),
        answer({0: 0.7}, age=math.nan),
    ):
        decision = only(planned([row()], Task(POLICY, (answered,))))
        assert (decision.state, decision.reason, decision.write) == (State.STALE, "stale", False)
    assert one().write, "a fresh one is"


def test_a_sample_from_the_future_is_no_reading() -> None:
    ahead = answer({0: 0.7}, age=NOW - 1e12)  # a freshness query in milliseconds
    assert only(planned([row()], Task(POLICY, (ahead,)))).reason == "ahead_of_time"
    assert only(planned([row()], Task(POLICY, (answer({0: 0.7}, age=-0.5),)))).write


def test_a_signal_that_failed_leaves_its_policy_without_a_reading_and_the_others_alone() -> None:
    two = dataclasses.replace(POLICY, signals=(SIGNAL, dataclasses.replace(SIGNAL, name="t")))
    broken = Task(two, (answer({0: 0.7}), Answer(None, "signal_error")))
    assert only(planned([row()], broken)).reason == "signal_error"
    other = Task(dataclasses.replace(POLICY, name="q", models=Models(("other",))), (answer({1: 0.7}),))
    theirs = dataclasses.replace(two, models=Models(("m",)))
    made = planned([row(0), row(1, model="other")], Task(theirs, broken.answers), other)
    assert [write.policy for write in made.writes] == ["q"]


def test_the_largest_known_part_counts() -> None:
    two = dataclasses.replace(POLICY, signals=(SIGNAL, dataclasses.replace(SIGNAL, name="t")))
    assert only(planned([row()], Task(two, (answer({0: 0.3}), answer({0: 0.6}))))).target == 0.6
    assert only(planned([row()], Task(two, (answer({0: 0.3}), answer({}))))).target == 0.3
    assert only(planned([row()], Task(two, (answer({0: 0.3}), answer({0: 0.9}, age=99))))).target == 0.3
    assert only(planned([row()], Task(two, (answer({}), answer({0: math.nan}))))).state is State.INVALID


@pytest.mark.parametrize(
    ("combine", "own", "target"),
    [(Combine.MAX, 0.9, 0.9), (Combine.MAX, 0.1, 0.7), (Combine.MAX, None, 0.7), (Combine.REPLACE, 0.9, 0.7)],
)
def test_what_a_sources_own_number_counts_for(combine: Combine, own: float | None, target: float) -> None:
    policy = dataclasses.replace(POLICY, combine=combine)
    assert one(policy=policy, memory=known(own=own)).target == target


@pytest.mark.parametrize("own", [math.nan, math.inf, -3.0, 7.0])
def test_an_own_number_that_is_none_does_no_harm(own: float) -> None:
    target = one(memory=known(own=own)).target
    assert target is not None
    assert 0.7 <= target <= 1.0


@pytest.mark.parametrize("stored", [None, math.nan, math.inf])
def test_a_value_that_is_not_stored_always_differs(stored: float | None) -> None:
    assert one(value=0.5, stored=stored).write


@pytest.mark.parametrize("value", [0.0, 0.3333, 0.501, 0.7, 1.0])
def test_without_a_deadband_a_load_is_written_once_and_not_for_ever(value: float) -> None:
    policy = dataclasses.replace(POLICY, deadband=0.0)
    task = Task(policy, (answer({0: value}),))
    (write,) = planned([row()], task).writes
    assert only(planned([row(load=write.load)], task)).reason == "unchanged"


def test_readings_are_clamped_and_counted() -> None:
    high, low = one(value=1e9), one(value=-0.1, stored=0.5)
    assert (high.target, high.clamped, low.target, low.clamped) == (1.0, True, 0.0, True)


def test_the_priority_then_the_name_decides_who_has_a_source() -> None:
    low = dataclasses.replace(POLICY, name="a")
    high = dataclasses.replace(POLICY, name="z", priority=1)
    same = dataclasses.replace(POLICY, name="b")
    tasks = [Task(policy, (answer({0: 0.7}),)) for policy in (same, low, high)]
    made = planned([row()], *tasks)
    assert [write.policy for write in made.writes] == ["z"]
    assert made.conflicts == {"a": 1, "b": 1}


def test_models_are_chosen_by_patterns() -> None:
    policy = dataclasses.replace(POLICY, models=Models(("llama-*",), ("*-draft",)))
    rows = [row(0, model="llama-3"), row(1, model="llama-3-draft"), row(2, model="qwen")]
    made = planned(rows, Task(policy, (answer({0: 0.7, 1: 0.7, 2: 0.7}),)))
    assert [decision.row.key for decision in made.decisions] == [key(0)]


def test_the_largest_differences_get_the_budget() -> None:
    values = {0: 0.3, 1: 0.9, 2: 0.6}
    made = planned([row(n, load=0.1) for n in values], Task(POLICY, (answer(values),)), budget=2)
    assert [write.key for write in made.writes] == [key(1), key(2)]
    assert [d.reason for d in made.decisions if not d.write] == ["budget"]


def test_an_untried_server_is_tried_with_three() -> None:
    rows = [row(n) for n in range(9)]
    made = planned(rows, Task(POLICY, (answer(dict.fromkeys(range(9), 0.9)),)), gate=gates.UNTRIED)
    assert len(made.writes) == 3


def test_a_gap_of_one_scrape_is_no_absence() -> None:
    policy = dataclasses.replace(POLICY, unmeasured=Unmeasured.NEUTRAL)
    made = planned([row()], Task(policy, (answer({}),)), measured_at={key(0): NOW - 39})
    assert (only(made).write, only(made).reason) == (False, "no_series")


def test_what_is_never_measured_is_neutral_where_the_policy_says_so() -> None:
    policy = dataclasses.replace(POLICY, unmeasured=Unmeasured.NEUTRAL)
    made = planned([row()], Task(policy, (answer({}),)), measured_at={key(0): NOW - 41})
    assert [(write.reason, round(write.load, 2)) for write in made.writes] == [("neutral", 0.5)]
    again = planned([row(load=made.writes[0].load)], Task(policy, (answer({}),)))
    assert only(again).reason == "unchanged"


@pytest.mark.parametrize(("last_own", "back_to"), [(0.3, 0.3), (None, 0.5), (math.nan, 0.5), (math.inf, 0.5)])
def test_a_load_that_a_server_would_keep_for_ever_is_taken_back(last_own: float | None, back_to: float) -> None:
    memory = {key(0): known(keeps=True, last_own=last_own)}
    stored = mark(0.9, 1)
    made = planned([row(load=stored)], Task(POLICY, (answer({}),)), memories=memory)
    assert [(write.reason, round(write.load, 2)) for write in made.writes] == [("decayed", back_to)]
    after = planned([row(load=made.writes[0].load)], Task(POLICY, (answer({}),)), memories=memory)
    assert after.writes == ()


def test_a_load_that_the_next_heartbeat_resets_is_left_to_it() -> None:
    memory = {key(0): known(resets=True)}
    assert planned([row(load=mark(0.9, 1))], Task(POLICY, (answer({}),)), memories=memory).writes == ()


def test_the_kubernetes_writer_needs_no_heartbeat() -> None:
    policy = dataclasses.replace(POLICY, server=Server("mx:8001", writer=Writer.KUBERNETES, namespace="mx"))
    assert one(policy=policy, memory=known(heartbeat_at=None)).write


def test_rows_without_stamps_are_never_written() -> None:
    made = planned([row(ms=0)], Task(POLICY, (answer({0: 0.7}),)))
    assert only(made).reason == "no_updated_at"


def test_the_strictest_settings_of_an_endpoints_policies_hold() -> None:
    other = dataclasses.replace(
        POLICY, source_heartbeat=10.0, interval=5.0, server=dataclasses.replace(POLICY.server, max_writes_per_second=7)
    )
    assert strictest([POLICY, other]) == Rules(10.0, 5.0, 7)


def test_an_identity_that_is_not_known_is_waited_for() -> None:
    signal = Signal("s", "q")
    answered = Answer(index(signal, [Sample({"k8s_pod_ip": "10.0.0.7"}, 0.7, 1.0)]))
    assert measure([answered], row(), None, 40).reason == "no_identity"
    assert measure([answered], row(), Identity("10.0.0.7"), 40).value == 0.7


fleets = st.lists(
    st.tuples(
        st.none() | st.floats(0, 1, width=32) | st.just(math.nan) | st.floats(width=32),
        st.none() | st.floats(),
        st.floats(-10, 100),
        st.none() | st.floats(NOW - 60, NOW),
        st.booleans(),
    ),
    max_size=8,
)


@given(fleets, st.sampled_from(Combine), st.sampled_from(Unmeasured), st.integers(0, 5), st.integers(0, 3))
def test_the_laws_of_a_plan(
    fleet: list[tuple[float | None, float | None, float, float | None, bool]],
    combine: Combine,
    unmeasured: Unmeasured,
    budget: int,
    seed: int,
) -> None:
    rows, memories, samples = [], {}, []
    for n, (stored, value, age, beat, keeps) in enumerate(fleet):
        rows.append(row(n, load=stored))
        memories[key(n)] = known(heartbeat_at=beat, keeps=keeps, own=stored, last_own=value)
        if value is not None:
            labels = {"mx_source_id": key(n).mx_source_id, "worker_id": f"w{n}"}
            samples.append(Sample(labels, value, age))
    policy = dataclasses.replace(POLICY, combine=combine, unmeasured=unmeasured)
    task = Task(policy, (Answer(index(SIGNAL, samples)),))
    made = planned(rows, task, memories=memories, budget=budget, seed=seed)
    listed = {each.key: each for each in rows}
    assert len(made.decisions) == len(rows), "each source is told of once"
    assert len(made.writes) == sum(decision.write for decision in made.decisions) <= budget
    for write in made.writes:
        beat = memories[write.key].heartbeat_at
        assert write.worker_rank == listed[write.key].worker_rank
        assert 0.0 < write.load < 1.0
        assert nonce_of(write.load) == write.nonce != nonce_of(listed[write.key].load)
        assert beat is not None
        assert NOW <= write.send_before == beat + 27.0
        assert write.answer_before - beat == pytest.approx(29.0)
    for decision in made.decisions:
        if decision.state in (State.STALE, State.INVALID, State.UNMATCHED):
            assert decision.measured is None
    shuffled = planned(rows[::-1], task, memories=memories, budget=len(rows), seed=seed)
    everyone = planned(rows, task, memories=memories, budget=len(rows), seed=seed)
    assert {write.key for write in shuffled.writes} == {write.key for write in everyone.writes}


def test_never_is_before_everything() -> None:
    assert NEVER < 0
