"""The table of quantization encodings, against gguf's own."""

import copy
import pickle

import gguf
import pytest

from max_weights.graph.quantization import BlockParameters, QuantizationConfig, QuantizationEncoding
from refusals import refuses

BLOCKS = [encoding for encoding in QuantizationEncoding if encoding.is_gguf]
# gguf has 40 bytes for Q8_1, which ggml itself no longer uses.
STALE = {"Q8_1"}


def test_every_encoding_but_gptq_is_ggmls() -> None:
    assert [encoding.value for encoding in QuantizationEncoding if not encoding.is_gguf] == ["GPTQ"]
    assert len({encoding.ggml_type for encoding in BLOCKS}) == len(BLOCKS) == 27


@pytest.mark.parametrize("encoding", BLOCKS, ids=lambda encoding: encoding.value)
def test_blocks_agree_with_gguf(encoding: QuantizationEncoding) -> None:
    assert encoding.block_parameters == BlockParameters(encoding.elements_per_block, encoding.block_size)
    try:
        theirs = gguf.GGMLQuantizationType[encoding.value]
    except KeyError:
        assert encoding.value in ("Q1_0", "Q2_0", "NVFP4"), "types newer than the gguf package"
        return
    assert encoding.ggml_type == theirs.value
    if encoding.value not in STALE:
        assert encoding.block_parameters == BlockParameters(*gguf.GGML_QUANT_SIZES[theirs])


def test_every_quantized_type_of_gguf_is_known() -> None:
    plain = {"F16", "BF16", "F32", "F64", "I8", "I16", "I32", "I64"}
    assert {theirs.name for theirs in gguf.GGMLQuantizationType} - plain <= {encoding.value for encoding in BLOCKS}


@pytest.mark.parametrize(
    ("encoding", "number", "elements", "size"),
    [
        (QuantizationEncoding.Q4_0, 2, 32, 18),
        (QuantizationEncoding.Q8_1, 9, 32, 36),
        (QuantizationEncoding.Q4_K, 12, 256, 144),
        (QuantizationEncoding.Q5_K, 13, 256, 176),
        (QuantizationEncoding.Q6_K, 14, 256, 210),
        (QuantizationEncoding.NVFP4, 40, 64, 36),
        (QuantizationEncoding.Q1_0, 41, 128, 18),
        (QuantizationEncoding.Q2_0, 42, 64, 18),
    ],
)
def test_blocks(encoding: QuantizationEncoding, number: int, elements: int, size: int) -> None:
    assert (encoding.ggml_type, encoding.elements_per_block, encoding.block_size) == (number, elements, size)


@pytest.mark.parametrize("encoding", QuantizationEncoding, ids=lambda encoding: encoding.value)
def test_names_and_parsing(encoding: QuantizationEncoding) -> None:
    assert encoding.value == encoding.value.upper()
    assert encoding.name == encoding.value.lower()
    for written in (encoding.value, encoding.name, encoding):
        assert QuantizationEncoding(written) is encoding
    assert QuantizationEncoding[encoding.value] is getattr(QuantizationEncoding, encoding.value) is encoding
    assert str(encoding) == f"QuantizationEncoding.{encoding.value}"
    assert pickle.loads(pickle.dumps(encoding)) is copy.deepcopy(encoding) is encoding


@pytest.mark.parametrize("value", ["Q4", "", "Q4_K_M", 12, None])
def test_unknown_encodings_name_the_choices(value: object) -> None:
    with refuses(ValueError):
        QuantizationEncoding(value)


@pytest.mark.parametrize("attribute", ["block_parameters", "elements_per_block", "block_size", "ggml_type"])
def test_gptq_has_no_blocks(attribute: str) -> None:
    assert not QuantizationEncoding.GPTQ.is_gguf
    with refuses(ValueError):
        getattr(QuantizationEncoding.GPTQ, attribute)


def test_config_is_frozen_and_compares_by_value() -> None:
    config = QuantizationConfig("gptq", bits=4, group_size=128)
    assert (config.desc_act, config.sym) == (False, False)
    assert config == QuantizationConfig(quant_method="gptq", bits=4, group_size=128, desc_act=False, sym=False)
    assert config != QuantizationConfig("gptq", 4, 128, sym=True)
    assert config == pickle.loads(pickle.dumps(config))
    assert len({config, copy.copy(config)}) == 1
    assert repr(config) == "QuantizationConfig(quant_method='gptq', bits=4, group_size=128, desc_act=False, sym=False)"
    for attribute in ("bits", "other"):
        with refuses(AttributeError):
            setattr(config, attribute, 8)
    with refuses(AttributeError):
        del config.bits
