"""Tools of the repository: tables of the documentation, publishing a model. Run from a checkout."""
