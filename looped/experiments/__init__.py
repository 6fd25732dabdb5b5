"""Many runs as data, and engines that bring them to an end.

    spec.py       a run as a row of data → its configuration and the name of its folder
    plan.py       what is measured of a run
    paper.py      the paper's figures: rows of runs and plans
    sweepfile.py  a file of runs, or a grid of them
    results.py    measured rows in files, each with where it comes from
    partial.py    what was measured before somebody had to stop
    jobs.py       a run with its plans, and how it stands, read from the disk
    locks.py      who works on what
    worker.py     one job in a process of its own
    remote.py     the same at the far end of somebody else's scheduler
    engines/      who starts the workers: one small interface
    drive.py      from jobs to their end
    board.py      what a person sees meanwhile

The folders are the truth: whoever starts the same jobs again does only what is missing in them.
"""
