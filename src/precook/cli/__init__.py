"""The command line: the same words as the library, for people and for programs.

One module for each command; `output` is the only one that prints, and `bars` draws beside it while a person looks.
"""
