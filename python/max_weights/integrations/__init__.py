"""Plug-ins for the extension points of other libraries; each module imports its library."""
