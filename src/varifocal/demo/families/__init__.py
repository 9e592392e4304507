"""One module per picture family; each has `draw(rng, split) -> Draft`."""
