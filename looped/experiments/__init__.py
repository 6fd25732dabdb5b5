"""Many runs as data, and backends that run them.

    plan.py       a run, what is measured of it, a file of many runs
    paper.py      the paper's figures: rows of runs and measurement plans
    queue.py      the jobs of a folder, their status and their results, read from the disk
    worker.py     one job in a process of its own: trains, and measures length by length
    backends/     local processes, Ray, Slurm: one interface; `run_jobs` runs jobs until all have ended

The folders are the only state: starting the same jobs again does what is missing in them.
"""
