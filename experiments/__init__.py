"""One module per table or figure of a paper: CLAIM, REPORTED, MODELS by scale, measure(case, progress), draw(table)."""
