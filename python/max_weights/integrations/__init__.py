"""Plug-ins for the extension points that other libraries have; each module imports its library."""
