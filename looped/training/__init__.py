"""Looped training: configuration and recipes, curriculum, loss, optimiser, engine."""
