"""Real federations by Flower: it connects machines and carries messages; who trains, when, and what counts is ours."""
