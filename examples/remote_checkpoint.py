"""Inspect a remote checkpoint, and fetch a part of it.

    python examples/remote_checkpoint.py hf://org/model model.layers.0
    python examples/remote_checkpoint.py s3://bucket/model --endpoint https://minio.example

Credentials come from the environment: AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, AZURE_STORAGE_ACCOUNT_KEY, HF_TOKEN.
"""

import argparse
import time

import max_weights
from max_weights.remote import Remote

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("url", help="s3://, gs://, az://, https:// or hf://")
arguments.add_argument("name", nargs="?", help="a weight, or what its name begins with; default: the first one")
arguments.add_argument("--endpoint", help="the server, where it is not the vendor's")
given = arguments.parse_args()

began = time.perf_counter()
weights = max_weights.load_weights(given.url, remote=Remote(endpoint=given.endpoint))
name = given.name or max_weights.infos(weights)[0].name
print(f"{len(weights)} weights, opened in {time.perf_counter() - began:.2f} s; nothing but headers was fetched")

print(max_weights.plan(weights, name))
began = time.perf_counter()
tensors = weights.load(name, framework="numpy")
size = sum(tensor.nbytes for tensor in tensors.values())
print(f"{len(tensors)} tensors, {size / 1e6:.1f} MB, fetched in {time.perf_counter() - began:.2f} s")
