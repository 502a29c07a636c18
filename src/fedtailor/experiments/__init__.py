"""Several runs: comparisons, tuning, equal budgets, and the executor that runs them all."""
