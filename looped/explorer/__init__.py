"""The explorer: a page on this machine on which one asks a model a question and watches its loop, step by step.

models.py     the models of a server, and a typed question read for one of them; export.py the same as a static site
queries.py    requests and their answers: a loop step by step, attention weights
app.py        the web application, its socket and its workers; static/ the page
security.py   limits, and which requests are refused
"""
