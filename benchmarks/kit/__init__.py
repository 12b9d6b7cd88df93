"""What the benchmark programs share: recorded games, processes and memory, results, metrics, plots."""
