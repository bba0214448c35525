"""One module per table or figure of the paper: CLAIM, REPORTED, runs(scale), measure(run), draw(table)."""
