"""Remote checkpoints: how URLs are opened, and files whose bytes a function of yours reads.

`load_weights("s3://bucket/model")`, `gs://`, `az://`, `https://` and `hf://org/model` do not need this module:
credentials come from the environment and the profile. Use it to set what these do not.
"""

from max_weights._remote import Credentials, Remote, source

__all__ = ["Credentials", "Remote", "source"]
