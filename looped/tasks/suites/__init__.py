"""Other people's benchmarks, a folder each."""
