"""The explorer: a page on this machine on which one asks a model a question and watches its loop, step by step."""
