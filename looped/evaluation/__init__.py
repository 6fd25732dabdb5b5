"""How good a model is: one unroll per length into a step grid, stopping rules as functions of it."""
