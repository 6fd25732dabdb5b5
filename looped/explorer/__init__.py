"""The explorer: a page on this machine on which one asks a model a question and watches its loop, step by step.

`models.py` and `asking.py` know what can be asked, `watch.py` runs a loop, `program.py` the n-RASP-L program beside
it, `looking.py` shows attention; none of them knows of the web. `server.py` puts them on a page (`static/`),
`guard.py` lets in only what belongs there, `turns.py` sees to it that nobody waits long for anybody else.
"""
