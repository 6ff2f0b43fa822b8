"""Loading by several processes over `torch.distributed`: each byte of the files is read once, and sent to the ranks
that need it. Errors are collective.
"""
