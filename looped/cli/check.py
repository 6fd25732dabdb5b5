"""`looped check`: are the n-RASP-L programs in a file legal? Names line and rule of whatever is not.

$ looped check mine.py
mine.py:7: index-arithmetic: an index + 2 (an index or a count takes only order comparison, +1 and -1)
mine.py: 1 broken rule in f
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from looped.cli.arguments import Positional
from looped.cli.output import print_json
from looped.rasp.lint import LintReport, check_file


@dataclass(frozen=True)
class CheckArgs:
    """Check n-RASP-L programs in a file for legality, naming line and rule; exit 1 if one is broken."""

    file: Annotated[str, Positional("FILE.py")]
    """A Python file of programs; docs/nrasp.md says what may stand in it."""
    json: bool = False
    """One JSON object."""


def run(args: CheckArgs) -> int:
    """Check and print."""
    report = check_file(args.file)
    if args.json:
        print_json(facts(report))
    else:
        for violation in report.violations:
            print(violation)
        print(f"{report.file}: {_verdict(report)} in {', '.join(report.programs) or 'its functions'}")
    return 0 if report.legal else 1


def facts(report: LintReport) -> dict[str, object]:
    """A report as JSON."""
    return {
        "file": report.file,
        "legal": report.legal,
        "programs": list(report.programs),
        "violations": [
            {"rule": violation.rule, "line": violation.line, "detail": violation.detail}
            for violation in report.violations
        ],
    }


def _verdict(report: LintReport) -> str:
    number = len(report.violations)
    if not number:
        return "nothing illegal"
    return f"{number} broken rule{'s' if number > 1 else ''}"
