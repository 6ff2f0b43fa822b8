"""Checkpoints where they are: how URLs are opened, and files of which a function of yours reads the bytes.

`load_weights("s3://bucket/model")`, `gs://`, `az://`, `https://` and `hf://org/model` need nothing of this module: the
environment and the profile say who asks. It is for what they do not say.
"""

from max_weights._remote import Credentials, Remote, source

__all__ = ["Credentials", "Remote", "source"]
