"""Templates of a method, a model, a data set and their tests; `fedflat new` writes renamed copies."""
