"""Corpora that measure validation: scripts that write attacks of every class, good files, and bad ones.

No file is ever loaded by the program it targets: the attacks are assembled by hand, and their payload is harmless
(`true`).
"""
