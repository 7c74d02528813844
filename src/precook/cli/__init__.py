"""The command line: the same words as the library, for people and for programs.

One module for each command holds what it gathers, its JSON and its text. `output` is the only module that prints, and
`progress` draws beside it while a person looks.
"""
