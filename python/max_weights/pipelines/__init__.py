"""Dotted paths of earlier versions of MAX."""
