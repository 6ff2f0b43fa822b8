// Kernels that decode packed blocks: dequantize_FORMAT_TARGET(blocks, elements, number of blocks). The elements come in the order of the blocks.
// Any grid will do, but a thread for each 16 bytes of the result is what the decoders are made for.
#include "blocks_k.h"
#include "blocks_simple.h"

#define DEQUANTIZE(name, Format, To) \
    KERNEL(dequantize_##name, count * Format::BYTES, count * Format::ELEMENTS * sizeof(To::Code)) { \
        dequantize<Format, To>(from, to, count); \
    }
#define FORMAT(name, Format) DEQUANTIZE(name##_f32, Format, F32) DEQUANTIZE(name##_f16, Format, F16) DEQUANTIZE(name##_bf16, Format, BF16)

FORMAT(q4_0, Q4_0)
FORMAT(q4_1, Q4_1)
FORMAT(q5_0, Q5_0)
FORMAT(q5_1, Q5_1)
FORMAT(q8_0, Q8_0)
FORMAT(q8_1, Q8_1)
FORMAT(q2_k, Q2_K)
FORMAT(q3_k, Q3_K)
FORMAT(q4_k, Q4_K)
FORMAT(q5_k, Q5_K)
FORMAT(q6_k, Q6_K)
FORMAT(iq4_nl, IQ4_NL)
FORMAT(iq4_xs, IQ4_XS)
FORMAT(mxfp4, MXFP4)
FORMAT(nvfp4, NVFP4)
