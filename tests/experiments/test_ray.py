"""The engine `ray` on a cluster of two simulated nodes: one is killed midway, and all ends as on `local`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import twelve
from forked import count

from looped import files, runs
from looped.experiments import queue
from looped.experiments.backends import BackendOptions, StatusListener, run_jobs, start

ray = pytest.importorskip("ray", reason="no ray here: pip install 'looped[ray]'")
pytestmark = pytest.mark.timeout(600)
STEPS = 300


class Nodes:
    """A head and a second node, a core each; processes of this machine that believe to be machines."""

    def __init__(self) -> None:
        from ray.cluster_utils import Cluster

        self.cluster = Cluster(
            initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False}
        )
        self.second = self.cluster.add_node(num_cpus=1)
        self.options = BackendOptions(device="cpu", address=self.cluster.address)

    def lose(self) -> None:
        """Kills the second node and all that runs there."""
        self.cluster.remove_node(self.second, allow_graceful=False)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    nodes = Nodes()
    yield nodes
    ray.shutdown()
    nodes.cluster.shutdown()


class Loser(StatusListener):
    """Loses the second node once two runs are at work and both have saved something."""

    def __init__(self, root: Path, nodes: Nodes) -> None:
        self.root, self.nodes, self.reasons, self.lost = root, nodes, set[str](), False

    def show(self, batch, statuses) -> None:
        self.reasons |= {status.reason for status in statuses}
        running = [job for job, status in zip(batch, statuses, strict=True) if status.state == "running"]
        saved = [job for job in running if queue.saved_step(self.root / job.name / runs.STATE)]
        if not self.lost and len(saved) == 2:
            self.lost = True
            self.nodes.lose()


def test_twelve_runs_with_a_lost_node_end_as_on_local(tmp_path: Path, nodes: Nodes) -> None:
    batch, root = twelve.batch(tmp_path / "ray", STEPS), tmp_path / "ray" / "runs"
    loser = Loser(root, nodes)
    outcome = run_jobs(start("ray", root, nodes.options), batch, listener=loser)
    assert (outcome.ending, count(outcome, "done")) == ("complete", 12)
    assert loser.lost
    assert any("lost" in reason for reason in loser.reasons), loser.reasons
    logs = "".join(path.read_text() for path in (root / ".jobs").glob("*.log"))
    assert logs.count("going on after step") == 1
    assert twelve.outcome(tmp_path / "ray", batch) == twelve.undisturbed(tmp_path / "local", STEPS)


def test_stopping_saves_first_and_runs_that_wait_never_start(small, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    batch = [small(task, "steps=1000000", plans=()) for task in ("copy", "parity")]
    outcome = run_jobs(
        start("ray", root, BackendOptions(device="cpu", workers=1)), batch,
        stop=lambda: queue.last_report(root / batch[0].name)[0] >= 20,
    )  # fmt: skip
    assert outcome.ending == "interrupted"
    assert [status.state for status in outcome.statuses] == ["interrupted", "queued"]
    assert queue.saved_step(root / batch[0].name / runs.STATE) >= 20
    assert not files.is_locked(queue.queue_file(root, f"{batch[0].name}.lock"))
    assert not (root / batch[1].name).exists()
    assert not ray.is_initialized(), "the cluster that was started has ended"
