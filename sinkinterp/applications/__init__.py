"""Uses of measurements: caches that forget tokens, rounding, masks of outliers, swapped positions."""
