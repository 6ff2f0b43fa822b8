"""MiniLM on several ranks, by FSDP2 or tensor parallelism: each gets its shard, and each byte of the file is read once.

torchrun --standalone --nproc-per-node 2 examples/fsdp2.py [CHECKPOINT [tp]]

With `tp`, each rank has rows of the first feed-forward weight and columns of the second; the rest is replicated. Every
rank prints the same norm.
"""

import json
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import BertConfig, BertModel

from max_weights.torch import load_into

models = os.environ.get("MAX_WEIGHTS_MODELS", ".models")
checkpoint = sys.argv[1] if len(sys.argv) > 1 else f"{models}/minilm.safetensors"
dist.init_process_group("gloo")  # "nccl" for GPUs

with open(f"{models}/minilm.config.json") as file:
    config = BertConfig(**json.load(file))
with torch.device("meta"):  # takes no memory
    model = BertModel(config)
if sys.argv[2:] == ["tp"]:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in model.encoder.layer:
        parallelize_module(layer, mesh, {"intermediate.dense": ColwiseParallel(), "output.dense": RowwiseParallel()})
else:
    for layer in model.encoder.layer:
        fully_shard(layer)
    fully_shard(model)
report = load_into(model, checkpoint, spread="world")

model.train(False)
with torch.no_grad():
    out = model(torch.arange(1, 9).reshape(1, 8)).last_hidden_state
print(f"rank {dist.get_rank()} of {dist.get_world_size()}: {report.bytes:,} bytes, {out.float().norm():.3f}")
dist.destroy_process_group()
