"""The chaos suite: a run of it, and that its oracle sees what is wrong when something is."""

from __future__ import annotations

import json
import os
import random
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from django.db import connection

from tests.chaos import cluster, evidence, journal, oracle, report
from tests.chaos.duplicates import explain
from tests.chaos.evidence import Attempt, Evidence, Job, Run, Submit
from tests.chaos.faults import Damage, Fault
from tests.chaos.fleet import Death
from tests.chaos.nemesis import Happening, Nemesis
from tests.chaos.plan import Plan
from tests.chaos.run import perform
from tests.chaos.sampler import ANYTIME, Sample, Sampler
from tests.factories import AttemptFactory, DeadLetterFactory, JobFactory

LEASE = 3.0


@pytest.mark.chaos
@pytest.mark.skipif(bool(cluster.unavailable()), reason=cluster.unavailable())
def test_nothing_is_lost_whatever_happens_to_processes_and_server() -> None:
    # The server's own user may not enter pytest's folder. What is wrong is to be looked into there.
    folder = Path(tempfile.mkdtemp(prefix="chaos-")).resolve()
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    result = perform(Plan.of(folder=folder, seed=seed, seconds=150, rate=50))
    print(result)
    assert result.has_passed
    assert len(result.figures["faults by kind"]) > 10
    assert result.figures["duplicates explained"] > 0
    assert result.figures["looks at what must always hold"] > 10
    shutil.rmtree(folder)


class Try(NamedTuple):
    """One execution in a story: when it began, where, and what the ledger says of it."""

    at: float
    outcome: str = "succeeded"
    worker: str = "worker-1.1"
    lasts: float | None = 1.0  # None: nobody saw its end
    error: str = ""

    @property
    def how(self) -> str:
        if self.lasts is None:
            return ""
        return "raised" if self.outcome == "failed" else "returned"


def tell(story: Evidence, job_id: int, kind: str, *tries: Try, reason: str = "") -> None:
    """Add a job that was committed, run and recorded."""
    key = f"1-{job_id}"
    story.submits[key] = Submit(key, kind, "ok")
    story.orders.add(key)
    status = "dead" if reason else "succeeded"
    story.jobs.append(Job(job_id, key, status, len(tries), len(tries), reason))
    for number, each in enumerate(tries, start=1):
        over = each.at + (LEASE if each.outcome == "lost" else each.lasts or 0)
        ended = None if each.lasts is None else each.at + each.lasts
        told = (job_id, number, number, key, each.worker, 1, each.at, each.at + LEASE)
        story.runs.setdefault(job_id, []).append(Run(*told, ended, each.how))
        row = (job_id, number, number, each.outcome, each.worker, each.at, over, each.error)
        story.attempts.setdefault(job_id, []).append(Attempt(*row))


PLAIN, FLAKY, KILLER, HOPELESS, ATOMIC, CRASHED, STOPPED, HURRIED, CUT, ROLLED_BACK = range(1, 11)


def good_story() -> Evidence:
    """Return a run in which everything happened that may happen, and all is well."""
    story = Evidence()
    tell(story, PLAIN, "plain", Try(0))
    tell(story, FLAKY, "flaky", Try(0, "failed"), Try(5))
    deadly = [Try(10 * n, "lost", f"worker-2.{n}", lasts=None) for n in (1, 2, 3)]
    tell(story, KILLER, "killer", *deadly, reason="worker_lost")
    failures = [Try(n, "failed", lasts=0.5) for n in (1, 2, 3)]
    tell(story, HOPELESS, "hopeless", *failures, reason="attempts_exhausted")
    tell(story, ATOMIC, "atomic", Try(0))
    story.effects[ATOMIC] = 1
    tell(story, CRASHED, "plain", Try(30, "lost", "worker-2.3", lasts=None), Try(35))
    tell(story, STOPPED, "slow", Try(40, "lost", "worker-3.1", lasts=9), Try(44))
    tell(story, HURRIED, "slow", Try(60, "interrupted", "worker-3.1", lasts=None), Try(61))
    tell(story, CUT, "plain", Try(80, "lost"), Try(84))
    failure = Try(95, "failed", error="django.db.utils.OperationalError")
    tell(story, ROLLED_BACK, "atomic", failure, Try(97))
    story.effects[ROLLED_BACK] = 1
    for key, result in (("1-20", "fail"), ("1-21", "info")):
        story.submits[key] = Submit(key, "plain", result)
    story.happenings = [
        Happening("stop_worker", "worker-3.1", 40.5, 48.5),
        Happening("terminate_worker", "worker-3.1", 59.0, 60.5),
        Happening("restart_immediate", "server", 79.0, 83.0),
        Happening("cut_worker", "worker-1.1", 94.0, 94.0),
    ]
    killed = [Death(f"worker-2.{n}", n, -9, "", 10.0 * n, 10.0 * n + 0.1) for n in (1, 2, 3)]
    story.deaths = [*killed, Death("worker-3.1", 9, 1, "term", 60.8, 60.9)]
    return story


def replace(rows: list[Any], place: int, **changes: Any) -> None:
    rows[place] = rows[place]._replace(**changes)


def change_job(story: Evidence, job_id: int, **changes: Any) -> None:
    replace(story.jobs, [job.id for job in story.jobs].index(job_id), **changes)


def lose(story: Evidence) -> None:
    story.jobs = [job for job in story.jobs if job.id != PLAIN]


def keep_what_was_rolled_back(story: Evidence) -> None:
    story.jobs.append(Job(99, "1-20", "succeeded", 1, 1))


def make_up(story: Evidence) -> None:
    story.jobs.append(Job(99, "7-7", "succeeded", 1, 1))


def double(story: Evidence) -> None:
    story.jobs.append(Job(99, "1-1", "succeeded", 1, 1))


def bury_alive(story: Evidence) -> None:
    story.jobs.append(story.jobs[0]._replace(status="dead"))


def forget_the_order(story: Evidence) -> None:
    story.orders.discard("1-1")


def forget_the_job(story: Evidence) -> None:
    story.orders.add("1-20")


def leave_claimed(story: Evidence) -> None:
    change_job(story, PLAIN, status="claimed")


def forget_the_run(story: Evidence) -> None:
    del story.runs[PLAIN]


def never_return(story: Evidence) -> None:
    replace(story.runs[PLAIN], 0, ended=None, how="")


def ack_under_another_fence(story: Evidence) -> None:
    change_job(story, PLAIN, fence=2)


def let_poison_succeed(story: Evidence) -> None:
    change_job(story, HOPELESS, status="succeeded", reason="")


def let_the_innocent_die(story: Evidence) -> None:
    change_job(story, CRASHED, status="dead", reason="worker_lost")


def mistake_the_reason(story: Evidence) -> None:
    change_job(story, KILLER, reason="attempts_exhausted")


def forget_an_attempt(story: Evidence) -> None:
    del story.attempts[FLAKY][0]


def count_too_many(story: Evidence) -> None:
    change_job(story, PLAIN, attempts=2)


def let_the_fence_go_back(story: Evidence) -> None:
    change_job(story, FLAKY, fence=1)


def repeat_a_fence(story: Evidence) -> None:
    replace(story.attempts[FLAKY], 0, fence=2)


def succeed_twice(story: Evidence) -> None:
    replace(story.attempts[FLAKY], 0, outcome="succeeded")


def die_after_success(story: Evidence) -> None:
    replace(story.attempts[HOPELESS], 2, outcome="succeeded")


def succeed_without_an_attempt(story: Evidence) -> None:
    replace(story.attempts[PLAIN], 0, outcome="failed")


def do_it_twice(story: Evidence) -> None:
    story.effects[ATOMIC] = 2


def undo_it(story: Evidence) -> None:
    story.effects[ATOMIC] = 0


def leave_an_effect(story: Evidence) -> None:
    story.effects[KILLER] = 1


def run_unrecorded(story: Evidence) -> None:
    replace(story.runs[CRASHED], 0, fence=9)


def run_twice_under_one_fence(story: Evidence) -> None:
    story.runs[PLAIN].append(story.runs[PLAIN][0]._replace(at=1.5, worker="worker-3.1"))


def imagine_a_success(story: Evidence) -> None:
    replace(story.runs[PLAIN], 0, fence=7)


def imagine_a_failure(story: Evidence) -> None:
    replace(story.runs[FLAKY], 0, how="returned")


def begin_too_early(story: Evidence) -> None:
    replace(story.attempts[FLAKY], 1, started=0.5)


def both_believe(story: Evidence) -> None:
    replace(story.runs[STOPPED], 1, at=42.0)


def believe_until_the_end(story: Evidence) -> None:
    replace(story.runs[STOPPED], 0, leased_until=45.0)


def forget_the_death(story: Evidence) -> None:
    story.deaths = [death for death in story.deaths if death.name != "worker-2.3"]


def stop_another(story: Evidence) -> None:
    story.happenings[0].target = "worker-1.1"


def hurry_another(story: Evidence) -> None:
    story.happenings[1].target = "worker-1.1"


def restart_long_before(story: Evidence) -> None:
    story.happenings[2].at, story.happenings[2].until = 70.0, 75.0


def restart_long_after(story: Evidence) -> None:
    story.happenings[2].at, story.happenings[2].until = 85.0, 86.0


def fail_without_a_cause(story: Evidence) -> None:
    del story.happenings[3]


def fail_out_of_character(story: Evidence) -> None:
    replace(story.attempts[CUT], 0, outcome="failed")


def fail_for_another_reason(story: Evidence) -> None:
    replace(story.attempts[ROLLED_BACK], 0, error="ValueError")


def run_after_success(story: Evidence) -> None:
    replace(story.attempts[CUT], 0, outcome="succeeded")


def exit_unasked(story: Evidence) -> None:
    story.deaths.append(Death("worker-1.1", 5, 1, "", 1.0, 1.1))


def crash(story: Evidence) -> None:
    story.deaths.append(Death("worker-1.1", 5, -11, "term", 1.0, 1.1))


def be_killed_by_nobody(story: Evidence) -> None:
    story.deaths.append(Death("worker-1.1", 5, -9, "", 1.0, 1.1))


def see_something(story: Evidence) -> None:
    story.seen.append("job 1 is claimed, but not leased")


VIOLATIONS: dict[Callable[[Evidence], None], oracle.Check] = {
    lose: oracle.lost,
    keep_what_was_rolled_back: oracle.unexpected,
    make_up: oracle.unexpected,
    double: oracle.doubled,
    bury_alive: oracle.doubled,
    forget_the_order: oracle.apart_from_its_order,
    forget_the_job: oracle.apart_from_its_order,
    leave_claimed: oracle.not_drained,
    forget_the_run: oracle.not_run,
    never_return: oracle.not_run,
    ack_under_another_fence: oracle.not_run,
    let_poison_succeed: oracle.wrongly_ended,
    let_the_innocent_die: oracle.wrongly_ended,
    mistake_the_reason: oracle.wrongly_ended,
    forget_an_attempt: oracle.gap_in_history,
    count_too_many: oracle.gap_in_history,
    let_the_fence_go_back: oracle.gap_in_history,
    repeat_a_fence: oracle.gap_in_history,
    succeed_twice: oracle.not_settled_once,
    die_after_success: oracle.not_settled_once,
    succeed_without_an_attempt: oracle.not_settled_once,
    do_it_twice: oracle.wrong_effects,
    undo_it: oracle.wrong_effects,
    leave_an_effect: oracle.wrong_effects,
    run_unrecorded: oracle.unrecorded,
    run_twice_under_one_fence: oracle.unrecorded,
    imagine_a_success: oracle.imagined,
    imagine_a_failure: oracle.imagined,
    begin_too_early: oracle.overlapping,
    both_believe: oracle.both_believed,
    believe_until_the_end: oracle.both_believed,
    forget_the_death: oracle.unexplained,
    stop_another: oracle.unexplained,
    hurry_another: oracle.unexplained,
    restart_long_before: oracle.unexplained,
    restart_long_after: oracle.unexplained,
    fail_without_a_cause: oracle.unexplained,
    fail_out_of_character: oracle.unexplained,
    fail_for_another_reason: oracle.unexplained,
    run_after_success: oracle.unexplained,
    exit_unasked: oracle.died_by_itself,
    crash: oracle.died_by_itself,
    be_killed_by_nobody: oracle.died_by_itself,
    see_something: oracle.seen_meanwhile,
}


class TestOracle:
    def test_finds_nothing_where_all_is_well(self) -> None:
        assert not any(oracle.judge(good_story()).values())

    @pytest.mark.parametrize("violate", VIOLATIONS, ids=lambda violate: violate.__name__)
    def test_sees(self, violate: Callable[[Evidence], None]) -> None:
        story = good_story()
        violate(story)
        assert oracle.judge(story)[VIOLATIONS[violate].__name__]

    def test_has_no_check_that_was_never_seen_to_fail(self) -> None:
        assert set(VIOLATIONS.values()) == set(oracle.CHECKS)

    def test_accepts_both_fates_of_a_commit_that_nobody_knows_of(self) -> None:
        story = good_story()
        assert oracle.recovered(story) == 0
        story.submits["1-1"] = story.submits["1-1"]._replace(result="info")
        assert oracle.recovered(story) == 1
        assert not any(oracle.judge(story).values())

    def test_takes_a_machine_that_stood_still_for_a_cause(self) -> None:
        story = good_story()
        del story.happenings[2]
        assert oracle.judge(story)["unexplained"]
        story.stalls.append(Happening("stall", "machine", 81.0, 83.5))
        assert not oracle.judge(story)["unexplained"]

    def test_names_the_cause_of_each_execution_that_was_repeated(self) -> None:
        found = {each.run.job: each.reason for each in explain(good_story())}
        assert found == {
            FLAKY: "failed",
            KILLER: "crash",
            HOPELESS: "failed",
            CRASHED: "crash",
            STOPPED: "stop",
            HURRIED: "hurried",
            CUT: "database",
            ROLLED_BACK: "its transaction",
        }


class TestEvidence:
    @pytest.fixture
    def journals(self, tmp_path: Path) -> Path:
        """What two producers left behind, and a handler that was killed while it wrote."""
        producer = journal.Journal(tmp_path / "producer-1.1.jsonl")
        producer.write("submit", producer=1, first=0, kinds=["plain"])
        producer.write("ok", producer=1, first=0, why="")
        producer.write("submit", producer=1, first=1, kinds=["slow", "atomic"])
        producer.write("fail", producer=1, first=1, why="aborted")
        producer.write("submit", producer=1, first=3, kinds=["flaky"])
        handler = journal.Journal(tmp_path / "handler-7-1.jsonl")
        told = {"job": 5, "fence": 2, "pid": 7}
        more = {"key": "1-0", "attempt": 1, "worker": "w"}
        handler.write("start", **told, **more, leased_until=9.0)
        handler.write("end", **told, how="returned", leased_until=12.0)
        handler.write("start", **{**told, "fence": 3}, **{**more, "attempt": 2}, leased_until=19.0)
        with (tmp_path / "handler-7-1.jsonl").open("a") as file:
            file.write('{"event": "end", "job": 5, "fe')
        return tmp_path

    def test_of_producers_says_what_is_known_of_each_job(self, journals: Path) -> None:
        story = Evidence()
        story.read_journals(journals)
        assert set(story.submits.values()) == {
            Submit("1-0", "plain", "ok"),
            Submit("1-1", "slow", "fail"),
            Submit("1-2", "atomic", "fail"),
            Submit("1-3", "flaky", "info"),
        }

    def test_of_handlers_puts_starts_and_ends_together(self, journals: Path) -> None:
        story = Evidence()
        story.read_journals(journals)
        first, second = story.runs[5]
        assert (first.how, first.leased_until, first.fence) == ("returned", 12.0, 2)
        assert (second.how, second.leased_until, second.ended) == ("", 19.0, None)

    def test_a_new_producer_finds_where_the_last_one_ended(self, journals: Path) -> None:
        found = journal.last(journals / "producer-1.1.jsonl", "submit")
        assert found is not None
        assert found["first"] == 3
        assert journal.last(journals / "producer-1.2.jsonl", "submit") is None

    def test_is_found_at_the_end_of_a_long_journal(self, tmp_path: Path) -> None:
        path = tmp_path / "producer-1.1.jsonl"
        line = json.dumps({"event": "ok", "first": 1, "why": "x" * 1000}) + "\n"
        wanted = json.dumps({"event": "submit", "first": 2}) + "\n"
        path.write_text(line * 100 + wanted + line)
        assert journal.last(path, "submit") == {"event": "submit", "first": 2}

    @pytest.mark.postgresql
    @pytest.mark.django_db
    def test_of_the_database_is_every_job_and_dead_letter(self) -> None:
        job = JobFactory(succeeded=True, kwargs={"key": "1-1"})
        letter = DeadLetterFactory(kwargs={"key": "1-2"}, attempts=5, fence=6)
        attempt = AttemptFactory(job=job, outcome="succeeded")
        raw = connection.connection
        jobs = {Job._make(row) for row in raw.execute(evidence.JOBS)}
        assert jobs == {
            Job(job.pk, "1-1", "succeeded", 1, 1, ""),
            Job(letter.pk, "1-2", "dead", 5, 6, letter.reason),
        }
        [row] = map(Attempt._make, raw.execute(evidence.ATTEMPTS))
        assert (row.job, row.number, row.fence) == (job.pk, attempt.number, attempt.fence)
        assert row.finished == pytest.approx(attempt.finished_at.timestamp(), abs=1e-5)


def claimed_without_a_lease() -> None:
    drop_constraint("jobqueue_claimed_iff_leased")
    JobFactory(claimed=True, claimed_until=None)


def leased_without_a_claim() -> None:
    drop_constraint("jobqueue_claimed_iff_leased")
    JobFactory(claimed=True, status="pending", max_attempts=5)


def settled_and_still_claimed() -> None:
    job = JobFactory(claimed=True)
    AttemptFactory(job=job, fence=job.fence)


def alive_and_dead() -> None:
    DeadLetterFactory(id=JobFactory().pk)


def waiting_for_nothing() -> None:
    drop_constraint("jobqueue_nothing_retries_for_ever")
    JobFactory(attempts=5, max_attempts=5)


def tried_too_often() -> None:
    drop_constraint("jobqueue_nothing_retries_for_ever")
    JobFactory(claimed=True, attempts=6, max_attempts=5)


def drop_constraint(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE jobqueue_job DROP CONSTRAINT {name}")


BROKEN = {
    "claimed, but not leased": claimed_without_a_lease,
    "leased, but not claimed": leased_without_a_claim,
    "claimed, and settled under the same fence": settled_and_still_claimed,
    "a job and a dead letter at once": alive_and_dead,
    "waiting without an attempt left": waiting_for_nothing,
    "more attempts than allowed": tried_too_often,
}


@pytest.mark.postgresql
@pytest.mark.django_db
class TestSampler:
    @pytest.fixture
    def look(self) -> Callable[[], list[str]]:
        nobody: Any = None
        sampler = Sampler(nobody, nobody)
        return lambda: list(sampler._broken(connection.connection))

    def test_finds_nothing_where_all_is_well(self, look: Callable[[], list[str]]) -> None:
        for state in ("pending", "scheduled", "claimed", "succeeded", "cancelled"):
            JobFactory(**{state: True})
        DeadLetterFactory()
        assert not look()
        assert not look()

    @pytest.mark.parametrize("name", ANYTIME)
    def test_sees_a_job_that_is(self, name: str, look: Callable[[], list[str]]) -> None:
        BROKEN[name]()
        [found] = look()
        assert found.endswith(f"is {name}")

    def test_sees_a_success_that_is_undone(self, look: Callable[[], list[str]]) -> None:
        job = JobFactory(succeeded=True)
        assert not look()
        job.status, job.finished_at = "pending", None
        job.save()
        assert look()

    def test_sees_a_fence_that_goes_back(self, look: Callable[[], list[str]]) -> None:
        job = JobFactory(claimed=True, fence=7)
        assert not look()
        job.fence = 6
        job.save()
        assert look() == [f"the fence of job {job.pk} went back from 7 to 6"]


class TestNemesis:
    def nemesis(self, folder: Path, seed: int, *only: str) -> Nemesis:
        world: Any = SimpleNamespace(fleet=SimpleNamespace(plan=SimpleNamespace(only=only)))
        return Nemesis(world, seed=seed, journal=journal.Journal(folder / "nemesis.jsonl"))

    def faults(self, nemesis: Nemesis, number: int) -> list[Fault]:
        return [nemesis._deal() for _ in range(number)]

    def test_deals_the_same_faults_for_the_same_seed(self, tmp_path: Path) -> None:
        one, same, other = (self.faults(self.nemesis(tmp_path, seed), 50) for seed in (1, 1, 2))
        assert one == same
        assert one != other

    def test_deals_only_what_it_is_told_to(self, tmp_path: Path) -> None:
        faults = self.faults(self.nemesis(tmp_path, 1, "kill_worker", "fill_disk"), 20)
        assert {fault.__name__ for fault in faults} == {"kill_worker", "fill_disk"}

    def test_undoes_what_is_due_and_tries_again_what_cannot_be_undone_yet(
        self, tmp_path: Path
    ) -> None:
        nemesis = self.nemesis(tmp_path, 1)
        tries = iter([OSError("not yet"), None])

        def undo() -> None:
            if error := next(tries):
                raise error

        happening = Happening("fill_disk", "disk", 0.0)
        nemesis._see_to(Damage("disk", undo), happening)
        nemesis._undo_due(float("inf"))
        assert happening.until is None
        nemesis._undo_due(float("inf"))
        assert happening.until is not None
        assert not nemesis._undos


class TestReport:
    def test_counts_what_happened(self) -> None:
        plan = Plan(folder=Path(), seed=7, seconds=1, rate=1)
        samples = [
            Sample(float(second), {"w": (50 + second // 3600) << 20}, {"w": 9}, 12, 0.1, 3, 1)
            for second in range(0, 7200, 60)
        ]
        figures = report.figures(plan, good_story(), samples)
        assert figures["jobs ok"] == 10
        assert figures["jobs unknown"] == 1
        assert figures["executions"] == 20
        assert figures["duplicates explained"] == 7
        assert figures["duplicates unexplained"] == 0
        assert figures["retried after a failure"] == 3
        assert figures["connections, most"] == 12
        assert 0 < figures["its memory's slope, MiB/h"] < 2
        assert figures["lost to restarted, most s"] == 7.0

    def test_prints_what_was_found(self) -> None:
        story = good_story()
        lose(story)
        plan = Plan(folder=Path(), seed=7, seconds=1, rate=1)
        text = "\n".join(report.lines(report.figures(plan, story, []), oracle.judge(story)))
        assert "lost: 1-1 was committed and is nowhere" in text


class TestPlan:
    def test_survives_its_way_to_another_process(self, tmp_path: Path) -> None:
        plan = Plan.of(folder=tmp_path, seed=1, seconds=10, rate=100)
        plan.save(tmp_path / "plan.json")
        assert Plan.load(tmp_path / "plan.json") == plan

    def test_deals_every_kind_in_its_share(self) -> None:
        plan = Plan.of(folder=Path(), seed=1, seconds=10, rate=10)
        chance = random.Random(1)
        kinds = [plan.kind(chance) for _ in range(20_000)]
        assert set(kinds) == {"plain", "slow", "flaky", "hopeless", "killer", "atomic"}
        assert kinds.count("killer") / 20_000 == pytest.approx(0.005, rel=0.5)
        assert kinds.count("plain") / 20_000 == pytest.approx(0.85, rel=0.1)
