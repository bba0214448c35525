"""Uses of what measurement finds: caches and what they may forget, rounding, masks of outliers, swapped positions."""
