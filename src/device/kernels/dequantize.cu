// Kernels that decode packed blocks: dequantize_FORMAT_TARGET(blocks, elements, number of blocks). The elements come in the order of the blocks.
// Any grid will do; a thread for each 32 bytes of the result has one item to make.
#include "blocks_few.h"
#include "blocks_iq.h"
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
FORMAT(q8_k, Q8_K)
FORMAT(q1_0, Q1_0)
FORMAT(q2_0, Q2_0)
FORMAT(tq1_0, TQ1_0)
FORMAT(tq2_0, TQ2_0)
FORMAT(iq2_xxs, IQ2_XXS)
FORMAT(iq2_xs, IQ2_XS)
FORMAT(iq2_s, IQ2_S)
FORMAT(iq3_xxs, IQ3_XXS)
FORMAT(iq3_s, IQ3_S)
FORMAT(iq1_s, IQ1_S)
FORMAT(iq1_m, IQ1_M)
