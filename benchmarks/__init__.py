"""What rounds cost: the works, the plain PyTorch loops they are held against, and the targets."""
