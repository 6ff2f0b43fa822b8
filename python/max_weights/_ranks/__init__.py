"""Loading by several processes over `torch.distributed`: each byte of the files is read once, and goes to those that
need it; one rank's error is the error of all.
"""
