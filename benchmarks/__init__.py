"""What rounds cost: the workloads, the plain PyTorch loops they are held against, and the targets."""
