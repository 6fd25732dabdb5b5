"""A short load test: many clients at once, no failed request. How fast it is, is not tested."""

from __future__ import annotations

import pytest
from running_server import Running

from benchmarks import explorer_load


@pytest.mark.slow
def test_a_hundred_clients_at_once_are_all_served(running: Running) -> None:
    at = explorer_load.ExplorerAddress("127.0.0.1", running.port, explorer_load.cookie(running.page))
    result = explorer_load.put_under_load(at, 100, 2.0)
    assert result.failures == []
    assert len(result.all) >= 100
    assert running.explorer.pool.waiting == 0


def test_times_are_told_in_order() -> None:
    told = explorer_load.LoadResult({"/api/run": [0.001 * i for i in range(1, 101)]}, cancelled=3).facts()
    assert (told["requests"], told["cancelled"], told["failed"]) == (100, 3, 0)
    assert (told["median_ms"], told["p95_ms"], told["longest_ms"]) == (51.0, 96.0, 100.0)


def test_another_machine_is_never_put_under_load(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["load", "--url", "http://example.org:80/"])
    assert explorer_load.main() == 2
    assert "on this machine" in capsys.readouterr().err
