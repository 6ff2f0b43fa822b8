"""Corpora that show what validation is worth: scripts that write attacks of every class, good files, and bad ones.

Nothing here is ever loaded by the program that a file is for: the attacks are put together by hand, and what they would
run is harmless (`true`).
"""
