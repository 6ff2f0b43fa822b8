"""vLLM: the load format `max_weights`, registered by the entry point of group `vllm.general_plugins`."""

from __future__ import annotations

import copy
import inspect
import time
from typing import Any

__all__ = ["register_vllm"]

_FILTERS = ("local_expert_ids", "_encoder_only_lm_prefixes")


def register_vllm() -> None:
    """Register `--load-format max_weights` with vLLM.

    Its options, in `--model-loader-extra-config`, are `max_memory`, `backend`, `threads` and `drop_cache` of
    `WeightsNode.stream`. An exception here would end vLLM, so none is raised.
    """
    try:
        _register()
    except Exception as error:
        import logging

        logging.getLogger("max_weights.integrations").warning(
            "vLLM does not know the load format max_weights: %r", error
        )


def _register() -> None:
    from vllm.model_executor.model_loader import register_model_loader
    from vllm.model_executor.model_loader.default_loader import DefaultModelLoader

    from max_weights._read_options import ReadKeywords
    from max_weights.integrations._streamed import streamed

    @register_model_loader("max_weights")
    class MaxWeightsLoader(DefaultModelLoader):  # type: ignore[misc]
        """vLLM's own loader, which finds the files; safetensors files are read by max_weights."""

        def __init__(self, load_config: Any) -> None:
            extra = dict(load_config.model_loader_extra_config or {})
            self._options = {name: extra.pop(name) for name in ReadKeywords.__optional_keys__ & extra.keys()}
            # The files are found as for the format "auto", with vLLM's own options.
            file_config = copy.copy(load_config)
            object.__setattr__(file_config, "load_format", "auto")
            object.__setattr__(file_config, "model_loader_extra_config", extra)
            super().__init__(file_config)

        def _get_weights_iterator(self, source: Any) -> Any:
            # vLLM filters for models that omit files or experts, and joins tensors of torchao.
            filters = [getattr(self, name, None) for name in _FILTERS] + [getattr(source, "is_unused_weight", None)]
            strategy = getattr(self.load_config, "safetensors_load_strategy", None)
            if strategy == "torchao" or any(value is not None for value in filters):
                return super()._get_weights_iterator(source)
            arguments = {**vars(source), "model_name_or_path": source.model_or_path}
            parameters = inspect.signature(self._prepare_weights).parameters
            _, files, use_safetensors, *_ = self._prepare_weights(*(arguments[name] for name in parameters))
            if not use_safetensors:
                return super()._get_weights_iterator(source)
            if not getattr(self, "counter_before_loading_weights", 1.0):
                self.counter_before_loading_weights = time.perf_counter()
            options = self._options
            return ((source.prefix + name, tensor) for name, tensor in streamed(sorted(files), **options))
