"""One module per table or figure: CLAIM, REPORTED, MODELS by scale, measure(case, tell), draw(table)."""
