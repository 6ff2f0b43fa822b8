"""Every option of every public verb, and the proof that it has an effect; `test_option_table.py` runs it.

A new option needs a row in the table of its verb: without one a test fails. The kinds of rows:

- `Changes(value)`: This value changes the result.
- `Refused(value, message)`: The value is an error with this message; for options that change how, not what.
- `Called()`: For `progress`: the function is called.
- `Kept("test_file.py::test_name")`: A separate test, whose file names the option.

A value that is a function of one argument is called with the `Case`, which has files and trees.
"""

from __future__ import annotations

import re

import numpy as np
import torch

import max_weights
import max_weights.delta
import max_weights.torch
from max_weights import WeightsNode, nn
from max_weights._loading import LoadOptions
from max_weights._read_options import ReadKeywords
from max_weights._saving import SaveOptions
from max_weights.integrations import WeightsReader, WeightsWriter
from max_weights.remote import Remote, source
from option_cases import (
    HALF,
    Called,
    Changes,
    Kept,
    Refused,
    Row,
    Verb,
    applied,
    diffed,
    embedded,
    fingerprinted,
    into,
    made_delta,
    saved,
    saved_by_torch,
    scaled,
    seen,
    written_by_writer,
)

DCP = Kept("test_ranks_store.py::test_dcp_save_writes_the_objects_of_one_process_and_dcp_load_reads_them")
DECODED = Kept("test_quantized_net.py::test_dequantize_gives_bfloat16_and_leaves_the_others")
LAZY = Kept("test_lazy_state_dict.py::test_a_lazy_tensor_says_what_it_is_and_gives_what_is_asked_for")
SIZES = Kept("test_saving_refused.py::test_modes_follow_the_umask_or_the_file_that_is_replaced_for_all_ways_to_save")
STRICT = Kept("test_load_into.py::test_everything_that_does_not_fit_is_said_at_once_and_nothing_is_changed")
SYNC = Kept(
    "test_saving_refused.py::test_a_name_that_is_not_on_the_disk_is_an_error_after_the_file_has_taken_its_place"
)
PROGRESS = Called()
WHAT: dict[str, Row] = {
    "select": Changes("a"),
    "rename": Changes({"a.": "x."}),
    "dtype": Changes("float16"),
    "packed": Refused("decode", "nothing is quantized here"),
}
READ: dict[str, Row] = {
    "options": Refused({}, "must be a ReadOptions"),
    "backend": Refused("bogus", "backend"),
    "max_memory": Refused(0, "above 0"),
    "threads": Kept("test_loading_backends.py::test_direct_reads_need_no_io_uring"),
    "drop_cache": Changes(True),
    "digests": Refused({}, "digests has none of"),
}
TIMEOUT = Refused(30, "rank_timeout= has no effect without ranks")
GROUP = Kept("test_ranks.py::test_shards_of_ranks_are_what_each_would_load_alone")
LOADED = {
    **WHAT,
    **READ,
    "shard": Changes(HALF),
    "copy": Changes(True),
    "progress": PROGRESS,
}
OF_FILES = {**LOADED, "drop_cache": Kept("test_loading_backends.py::test_the_page_cache_forgets_what_was_loaded")}
SAVED: dict[str, Row] = {
    "metadata": Changes({"made": "by"}),
    "alignment": Changes(4096),
    "sync": SYNC,
    "read_back": Kept("test_saving.py::test_a_writer_that_reads_back_finds_a_changed_byte"),
    "progress": PROGRESS,
    "threads": Refused(0, "threads=0: it must be"),
    "remote": Kept("test_remote_saving.py::test_a_file_has_the_bytes_that_it_has_on_a_disk"),
    "if_exists": Kept("test_remote_saving.py::test_an_object_that_is_there_stays_if_that_is_wanted"),
}
TO_FILE: dict[str, Row] = {
    **SAVED,
    "max_shard_size": Kept("test_fingerprint.py::test_real_files_of_two_formats_have_the_same"),
    "select": Changes("a"),
    "rename": Changes({"a.": "x."}),
    "dtype": Changes("float16"),
    "shard": Changes(HALF),
    "quantize": Refused("q8_0", "quantize= is for GGUF files"),
    "tied": Kept("test_saving.py::test_tied_tensors_are_copied_noted_or_refused"),
    "strided": Kept("test_saving.py::test_what_is_no_tensor_or_has_no_elements_is_refused_by_name"),
    "group": Kept("test_ranks_saving.py::test_files_of_every_placement_are_those_of_one_process_byte_for_byte"),
    "rank_timeout": TIMEOUT,
}
DELTA = "test_delta.py::"
WRITTEN = "test_delta_dialects_written.py::test_large_tensors_of_every_kind_of_bytes_are_written"
REMOTE = "test_remote.py::"
STATE = "test_load_state_dict.py::"


VERBS: dict[str, Verb] = {
    "weights.load": Verb(
        WeightsNode.load,
        {
            **LOADED,
            "framework": Changes("numpy"),
            "device": Refused("tpu:0", "tpu"),
            "out": Changes(lambda _: {"b": np.zeros(3, "f4")}),
            "group": GROUP,
            "rank_timeout": TIMEOUT,
        },
        lambda case, options: seen(case.weights.load(**options)),
        (ReadKeywords,),
    ),
    "weights.stream": Verb(
        WeightsNode.stream,
        {
            **WHAT,
            **READ,
            "drop_cache": Kept("test_streaming.py::test_a_stream_gives_what_load_gives_in_the_order_of_the_files"),
            "shard": Changes(HALF),
            "framework": Changes("numpy"),
            "reuse": Kept("test_streaming.py::test_a_stream_gives_what_load_gives_in_the_order_of_the_files"),
            "device": Refused("tpu:0", "tpu"),
            "group": Kept("test_ranks_streaming.py::test_each_rank_gets_its_parts_in_the_order_of_all"),
            "rank_timeout": TIMEOUT,
            "progress": PROGRESS,
        },
        lambda case, options: seen(dict(case.weights.stream(**options))),
        (ReadKeywords,),
    ),
    "plan": Verb(
        max_weights.plan,
        {
            **LOADED,
            "shard": Kept("test_conversion_add.py::test_a_slice_and_a_shard_of_a_sum_read_what_they_need"),
            "framework": Refused("bogus", "framework must be"),
            "device": Refused("tpu:0", "tpu"),
            "out": Changes(lambda _: {"b": np.zeros(3, "f4")}),
            "digests": Changes({"a.weight": "x", "b": "x"}),
            # So that the arguments of `load` can be given.
            "progress": Kept("test_planning.py::test_a_plan_says_what_is_done_and_where_it_goes"),
        },
        lambda case, options: repr(max_weights.plan(case.weights, **options)),
        (ReadKeywords,),
    ),
    "load_ranks": Verb(
        max_weights.load_ranks,
        # No GPU is available here: the programs on the stand-in driver call it, and it uses the code path of `load`.
        dict.fromkeys(
            [*WHAT, *READ, "framework", "copy", "progress"],
            Kept("test_gpu_loading.py::test_every_program_is_run"),
        ),
        keywords=(ReadKeywords,),
    ),
    "lazy_state_dict": Verb(
        max_weights.lazy_state_dict,
        {
            **WHAT,
            "copy": LAZY,
        },
        lambda case, options: seen(
            {name: lazy[...] for name, lazy in max_weights.lazy_state_dict(case.weights, **options).items()}
        ),
    ),
    "save": Verb(
        max_weights.save,
        {**TO_FILE, "name": Refused("weights", "save: name= is for a folder of files")},
        saved(lambda case, options: max_weights.save(case.weights, case.out, **options)),
    ),
    "weights.save": Verb(
        WeightsNode.save,
        {**TO_FILE, "name": Refused("weights", "save: name= is for a folder of files")},
        saved(lambda case, options: case.weights.save(case.out, **options)),
        (SaveOptions,),
    ),
    "save_file": Verb(
        max_weights.save_file,
        {
            **TO_FILE,
            "name": Refused("weights", "save_file: name= is for a folder of files"),
            "max_shard_size": Refused("1GB", "save_file: max_shard_size= is for a folder of files"),
            "group": Refused(object(), "save_file: group= is for a folder of files"),
        },
        saved(lambda case, options: max_weights.save_file(case.tensors, case.out, **options)),
        (SaveOptions,),
    ),
    "save_sharded": Verb(
        max_weights.save_sharded,
        {**TO_FILE, "max_shard_size": Changes("100B"), "name": Changes("weights")},
        saved(lambda case, options: max_weights.save_sharded(case.tensors, case.folder / "sharded", **options)),
        (SaveOptions,),
    ),
    "save_gguf": Verb(
        max_weights.save_gguf,
        {
            **SAVED,
            "rank_timeout": TIMEOUT,
            **{
                option: Refused(value, f"save_gguf: {option}= is for safetensors files")
                for option, value in {
                    "dtype": "float16",
                    "rename": {"a.": "x."},
                    "select": "a",
                    "shard": HALF,
                    "name": "weights",
                    "tied": "alias",
                    "strided": "refuse",
                    "alignment": 4096,
                    "group": object(),
                }.items()
            },
            "metadata": Changes({"general.name": "one"}),
            "quantize": Refused({"x.weight": "q8_0"}, "quantize names 'x.weight'"),
            "max_shard_size": SIZES,
        },
        saved(lambda case, options: max_weights.save_gguf(case.tensors, case.folder / "out.gguf", **options)),
        (SaveOptions,),
    ),
    "SafetensorsWriter": Verb(
        max_weights.SafetensorsWriter,
        {name: row for name, row in SAVED.items() if name not in ("progress", "threads")},
        saved(lambda case, options: written_by_writer(case, options)),
    ),
    "torch.load_file": Verb(
        max_weights.torch.load_file,
        {
            **OF_FILES,
            "copy": Kept("test_loading.py::test_entry_points_take_every_option_and_refuse_what_is_none"),
            "device": Refused("bogus", "bogus"),
        },
        lambda case, options: seen(max_weights.torch.load_file(case.path, **options)),
        (LoadOptions,),
    ),
    "numpy.load_file": Verb(
        max_weights.numpy.load_file,
        {**OF_FILES, "copy": Kept("test_loading.py::test_entry_points_take_every_option_and_refuse_what_is_none")},
        lambda case, options: seen(max_weights.numpy.load_file(case.path, **options)),
        (LoadOptions,),
    ),
    "jax.load_file": Verb(
        max_weights.jax.load_file,
        {
            **dict.fromkeys(
                OF_FILES, Kept("test_loading.py::test_entry_points_take_every_option_and_refuse_what_is_none")
            ),
            "packed": DECODED,
        },
        keywords=(LoadOptions,),
    ),
    "torch.load_into": Verb(
        max_weights.torch.load_into,
        {
            **OF_FILES,
            "select": Refused("a", "missing"),
            "rename": Refused({"a.": "x."}, "unexpected"),
            "shard": Refused(HALF, "the file has the shape"),
            "copy": Kept("test_load_into.py::test_a_module_is_filled_in_place_as_load_state_dict_fills_it"),
            "strict": STRICT,
            "group": Kept("test_ranks.py::test_a_group_may_have_one_rank"),
            "spread": Refused("world", "spread= has no effect without ranks"),
            "rank_timeout": TIMEOUT,
            "undo": Kept("test_transaction.py::test_without_undo_an_error_says_that_values_may_be_new"),
        },
        into,
        (LoadOptions,),
    ),
    "load_weights": Verb(
        max_weights.load_weights,
        {
            "backend": Refused("bogus", "backend"),
            "strict": Kept("test_cli.py::test_ls_prints_warnings_beside_the_listing"),
            "max_header_bytes": Refused(10, "header"),
            "remote": Kept("test_remote.py::test_files_of_every_format_are_what_they_are_on_a_disk"),
        },
        lambda case, options: repr(max_weights.load_weights(case.path, **options)),
    ),
    "torch.load": Verb(
        max_weights.torch.load,
        {
            "map_location": Kept("test_pytorch_checks.py::test_what_the_callers_function_raises_comes_to_the_caller"),
            "pickle_module": Refused(re, "pickle_module="),
            "weights_only": Refused(False, "weights_only=False"),
            "mmap": Kept("test_torch_load.py::test_real_files_load_as_torch_loads_them"),
            "encoding": Refused("latin1", "encoding="),
            "unknown": Refused("bogus", "unknown must be one of"),
        },
        lambda case, options: max_weights.torch.load(case.path, **options),
    ),
    "torch.verify_loaded": Verb(
        max_weights.torch.verify_loaded,
        {
            "rename": Kept("test_verify_loaded.py::test_bad_arguments_are_errors"),
            "ignore": Kept("test_verify_whole.py::test_what_ignore_names_is_excused"),
            "group": Kept("test_ranks.py::test_each_rank_verifies_its_part_and_all_say_what_one_finds"),
            "threads": Refused(-1, ""),
        },
        lambda case, options: max_weights.torch.verify_loaded(torch.nn.Linear(2, 2), case.weights, **options),
    ),
    "fingerprint": Verb(
        max_weights.fingerprint,
        {
            "select": Changes("a"),
            "column_blocks": Changes(2),
            "digests": Changes(True),
            "identity": Changes(True),
            "checksums": Kept("test_pytorch_checks.py::test_checksums_of_stored_tensors_are_verified_on_request"),
            "threads": Refused(-1, ""),
            "progress": PROGRESS,
        },
        fingerprinted,
    ),
    "fingerprint of tensors": Verb(
        max_weights.fingerprint,
        {
            "select": Changes("a"),
            "column_blocks": Changes(2),
            "digests": Changes(True),
            "identity": Refused(True, "identity has no effect on tensors in memory"),
            "checksums": Refused(True, "checksums has no effect on tensors in memory"),
            "threads": Refused(3, "threads has no effect on tensors in memory"),
            "progress": Refused(True, "progress has no effect on tensors in memory"),
        },
        lambda case, options: max_weights.fingerprint(case.tensors, **options).to_json(),
    ),
    "stats": Verb(
        max_weights.stats,
        {"select": Changes("a"), "bins": Changes(4), "threads": Refused(-1, ""), "progress": PROGRESS},
        lambda case, options: dict(max_weights.stats(case.weights, **options)),
    ),
    "diff": Verb(
        max_weights.diff,
        {
            "rtol": Changes(0.01),
            "atol": Changes(1.0),
            "exact": Changes(True),
            "values": Changes(False),
            "dtypes": Kept("test_diff.py::test_a_gguf_file_meets_the_names_and_rows_of_transformers"),
            "metadata": Changes(False),
            "threads": Refused(-1, ""),
            "progress": PROGRESS,
        },
        lambda case, options: repr(diffed(case, options)),
    ),
    "quantized": Verb(
        max_weights.quantized,
        {"name": Refused("nothing", "nothing")},
        lambda case, options: repr(max_weights.quantized(case.weights, **options)),
    ),
    "table": Verb(
        max_weights.table,
        {
            "name": Refused("nothing", "no weight named 'nothing'"),
            "scales": Refused("b", "scales of shape [3] do not fit"),
            "cache": Changes("1kB"),
        },
        lambda case, options: repr(max_weights.table(case.weights, **{"name": "a.weight"} | options).cache_counts),
    ),
    "torch.embedding": Verb(
        max_weights.torch.embedding,
        {
            "dtype": Changes("float16"),
            "padding_idx": Changes(3),
            "device": Changes("meta"),
            "scales": Refused("b", "scales of shape [3] do not fit"),
            "cache": Changes(0),
        },
        lambda case, options: embedded(max_weights.torch.embedding(case.weights, "a.weight", **options)),
    ),
    "renamed": Verb(
        max_weights.renamed,
        {"config": Refused(3, "config is the content of a config.json")},
        lambda case, options: max_weights.renamed(case.weights, "vllm", **options),
    ),
    "reshard": Verb(
        max_weights.reshard,
        {
            "strategies": Refused("bogus", "bogus"),
            "dtype": Kept("test_resharding.py::test_what_belongs_to_the_model_is_copied_and_the_dtype_is_noted"),
            "select": Changes("b"),
            "rename": Changes({"a.": "x."}),
            "max_shard_size": Kept("test_resharding.py::test_the_parts_of_all_ranks_are_the_whole"),
            "sync": SYNC,
            "read_back": Kept("test_conversion_entry_points.py::test_a_view_is_saved_and_resharded_as_its_weights_are"),
            "progress": PROGRESS,
            "threads": Refused(0, "threads=0: it must be"),
            "plan_only": Kept("test_resharding.py::test_beside_a_file_that_is_named_alone_only_known_files_are_taken"),
        },
        lambda case, options: repr(
            max_weights.reshard(case.path, case.folder / "ranks", 2, **({"strategies": HALF.strategies} | options))
        ),
    ),
    "bench": Verb(
        max_weights.bench,
        {
            "against": Refused(["nothing"], "nothing"),
            "cold": Kept("test_benching.py::test_a_file_is_measured_beside_a_rival_and_the_limits"),
            "seconds": Kept("test_benching.py::test_time_that_is_up_ends_it"),
            "progress": Kept("test_benching.py::test_a_file_is_measured_beside_a_rival_and_the_limits"),
            "device": Kept("test_gpu_benching.py::test_what_is_no_package_of_a_device_is_named"),
        },
        lambda case, options: max_weights.bench(case.path, **options),
    ),
    "validate": Verb(
        max_weights.validate,
        {
            "level": Changes("content"),
            "rules": Refused("bogus", "bogus"),
            "ignore": Refused("bogus", "bogus"),
            "severity": Refused("bogus", "bogus"),
            "threads": Kept("test_option_table.py::test_options_of_validation_reach_it"),
            "max_memory": Kept("test_option_table.py::test_options_of_validation_reach_it"),
            "timeout": Changes(0.0),
            "progress": PROGRESS,
        },
        lambda case, options: [(file.depth, file.path) for file in max_weights.validate(case.path, **options).files],
    ),
    "assert_checkpoint_ok": Verb(
        max_weights.assert_checkpoint_ok,
        {"fail_on": Kept("test_option_table.py::test_options_of_validation_reach_it")},
    ),
    "dequantize": Verb(
        max_weights.dequantize,
        dict.fromkeys(["dtype", "out"], Kept("test_blocks.py::test_a_range_of_rows_is_decoded_without_the_rest")),
    ),
    "scale_blocks": Verb(
        max_weights.scale_blocks,
        {
            **dict.fromkeys(
                ["block", "dtype", "out"],
                Kept("test_blocks.py::test_mapped_data_is_scaled_part_by_part_and_written_where_it_is_wanted"),
            ),
            "saturate": Changes(True),
        },
        lambda case, options: seen({"a": scaled(case.tensors["a.weight"], options)}),
    ),
    "delta.create": Verb(
        max_weights.delta.create,
        {
            "dialect": Refused("bogus", "bogus"),
            "version": Kept(WRITTEN),
            "base_version": Kept(WRITTEN),
            "rename": Refused({"a.weight": "b"}, "rename"),
            "threads": Refused(0, "threads=0"),
            "checksum": Kept("test_delta_dialects_written.py::test_what_is_written_is_read_as_receivers_do"),
            "sync": Kept(DELTA + "test_versions_are_files_trees_or_tensors_in_memory"),
            "progress": PROGRESS,
        },
        saved(
            lambda case, options: max_weights.delta.create(
                case.path, {**case.tensors, "b": np.zeros(3, "f4")}, case.folder / "delta.safetensors", **options
            )
        ),
    ),
    "delta.apply": Verb(
        max_weights.delta.apply,
        {
            "sync": Kept(DELTA + "test_deltas_of_a_folder_are_read_by_url"),
            "read_back": Kept("test_delta_dialects.py::test_files_become_the_new_version_once"),
            "threads": Refused(0, "threads=0"),
            "progress": PROGRESS,
        },
        lambda case, options: max_weights.delta.apply(case.path, made_delta(case), **options),
    ),
    "delta.apply_into": Verb(
        max_weights.delta.apply_into,
        {
            "rename": Kept(DELTA + "test_a_module_gets_a_delta_also_under_other_names"),
            "group": Kept("test_ranks.py::test_deltas_are_applied_to_parts_of_every_placement"),
            "threads": Refused(0, "threads=0"),
            "rank_timeout": TIMEOUT,
            "progress": PROGRESS,
        },
        lambda case, options: applied(case, options),
    ),
    "delta.fold": Verb(
        max_weights.delta.fold,
        {
            "path": Kept(DELTA + "test_what_folds_a_chain_leads_to_the_same_version"),
            "keep": Refused(-1, "keep"),
            "threads": Kept("test_transaction.py::test_a_number_of_threads_that_cannot_be_is_refused_by_fold"),
            "sync": Kept(DELTA + "test_what_folds_a_chain_leads_to_the_same_version"),
        },
        lambda case, options: max_weights.delta.fold(case.path, made_delta(case).parent, **options),
    ),
    "delta.follow": Verb(
        max_weights.delta.follow,
        dict.fromkeys(["every", "timeout"], Kept(DELTA + "test_versions_are_followed_as_they_appear")),
    ),
    "Module.load": Verb(
        nn.Module.load,
        {
            "dtype": Kept(STATE + "test_load_takes_path_dtype_and_rename"),
            "rename": Kept(STATE + "test_load_takes_path_dtype_and_rename"),
            "adapter": Kept(STATE + "test_load_leaves_integers_and_honours_adapters"),
            "strict": Kept("test_load_packed.py::test_load_takes_a_file_of_mixed_encodings_with_override"),
            "copy_if_misaligned": Kept(STATE + "test_copy_if_misaligned_copies_only_then"),
            "override_quantization_encoding": Kept(
                "test_load_packed.py::test_load_takes_a_file_of_mixed_encodings_with_override"
            ),
        },
    ),
    "Module.load_state_dict": Verb(
        nn.Module.load_state_dict,
        {
            "override_quantization_encoding": Kept(
                "test_load_packed.py::test_gptq_takes_the_bytes_as_uint8_and_keeps_the_original"
            ),
            "weight_alignment": Kept(STATE + "test_alignment_of_the_call_of_the_weight_and_of_the_dtype"),
            "strict": Kept("test_load_packed.py::test_weights_that_a_graph_has_are_loaded_as_the_graph_has_them"),
            "copy_if_misaligned": Kept(STATE + "test_copy_if_misaligned_copies_only_then"),
        },
    ),
    "patch": Verb(
        max_weights.patch,
        {"verify": Kept("test_patch_verify.py::test_every_parameter_of_every_architecture_is_verified")},
    ),
    "Remote": Verb(
        Remote,
        {
            "endpoint": Kept(REMOTE + "test_files_of_every_format_are_what_they_are_on_a_disk"),
            "region": Kept("test_remote_credentials.py::test_the_machine_says_who_asks"),
            "credentials": Kept("test_remote_credentials.py::test_the_machine_says_who_asks"),
            "allow_http": Kept("test_remote_credentials.py::test_servers_that_are_not_there_are_not_tried_for_long"),
            "requests": Kept(REMOTE + "test_what_is_no_source_is_refused"),
            "request_bytes": Kept(REMOTE + "test_faults_that_pass_leave_right_bytes"),
            "retries": Kept(REMOTE + "test_what_is_not_there_is_named_without_what_is_secret"),
            "stall": Kept(REMOTE + "test_faults_that_pass_leave_right_bytes"),
            "timeout": Kept(REMOTE + "test_a_timeout_bounds_a_load"),
            "cache": Kept("test_remote_cache.py::test_the_second_load_asks_only_what_the_files_are_and_maps_them"),
            "cache_bytes": Kept("test_remote_cache.py::test_the_bound_is_kept_and_nothing_that_is_in_use_goes"),
        },
    ),
    "remote.source": Verb(
        source, dict.fromkeys(["name", "identity"], Kept(REMOTE + "test_a_function_reads_the_bytes_of_a_source"))
    ),
    "WeightsReader": Verb(
        WeightsReader,
        {
            "checkpoint": Refused(None, "WeightsReader has no checkpoint"),
            "group": Kept("test_ranks_saving.py::test_dcp_load_reads_every_placement_and_each_byte_once"),
            "rank_timeout": TIMEOUT,
        },
        lambda case, options: repr(WeightsReader(**({"checkpoint": case.path} | options)).read_metadata()),
    ),
    "WeightsWriter": Verb(
        WeightsWriter,
        {
            "folder": Refused(None, "WeightsWriter has no folder"),
            "metadata": Changes({"made": "by"}),
            "max_shard_size": Changes("100B"),
            "name": Changes("weights"),
            "alignment": Changes(4096),
            "sync": SYNC,
            "rank_timeout": Refused(-1, "rank_timeout"),
            "remote": DCP,
        },
        saved(lambda case, options: saved_by_torch(case, {"folder": case.folder / "dcp"} | options)),
    ),
}
"""By the names in messages; a verb whose options depend on its arguments is listed twice."""


# Public functions and classes whose parameters are inputs, and no options.
WITHOUT_OPTIONS = {
    "aliases",
    "dequantize_groups",  # they describe the bytes: test_quantized_groups.py
    "infos",
    "load_file",  # these three: the options of max_weights.torch's
    "load_into",
    "objects",
    "patched",
    "quantize",
    "release_memory",
    "set_threads",
    "show_versions",
    "unpatch",
    "verify_loaded",
    "warnings",
}
