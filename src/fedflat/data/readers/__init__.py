"""Readers of the files of data sets. A reader finds its files in a folder and returns the train and test part."""
