"""Several runs: comparisons, tuning, equal budgets, and the executor that works them off."""
