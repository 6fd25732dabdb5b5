"""Other people's benchmarks as tasks: found by name like ours, listed by `looped tasks --suite NAME`."""

from __future__ import annotations

from looped.tasks.base import Task
from looped.tasks.suites import chomsky

SUITES: dict[str, dict[str, Task]] = {"chomsky": chomsky.TASKS}
