"""Readers of the files that data sets come in. A reader finds its files in a folder and returns their parts."""
