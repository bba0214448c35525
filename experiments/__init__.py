"""One module per table or figure of a paper. Its EXPERIMENT holds the claim, the rows, the figure and the rules."""
