/* For every processor: what the compiler makes of it. */
#include "quire.h"

#define LANES 4
#define TARGET
#define NAME(name) name##_plain
#define SUM(x) sum_of_4((VF)(x))
typedef float VF __attribute__((vector_size(16), aligned(4), may_alias));
static inline float sum_of_4(VF x) { return (x[0] + x[2]) + (x[1] + x[3]); }
#include "rows.h"

static float from_half(const uint8_t *at) {
    uint16_t half;
    memcpy(&half, at, sizeof half);
    const uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    const float tiny = (float)rest * 5.9604645e-8f; /* without an exponent of its own: steps of 2^−24 */
    uint32_t bits = sign | ((rest << 13) + (112u << 23));
    float found;
    if (rest < 0x400) return sign ? -tiny : tiny;
    memcpy(&found, &bits, sizeof found);
    return found;
}

/* Sums of 16 outputs for one block. */
static void block_sums(const uint8_t *codes, const int8_t *x, int bits, int is_twice, int32_t *sums) {
    for (int output = 0; output < OUTPUTS; output++) sums[output] = 0;
    for (int step = 0; step < BLOCK * bits / 32; step++, codes += 64)
        for (int output = 0; output < OUTPUTS; output++)
            for (int i = 0; i < 4; i++) {
                const int code = codes[4 * output + i];
                if (bits == 8)
                    sums[output] += code * x[4 * step + i];
                else if (is_twice)
                    sums[output] += TWICE_E2M1[code & 15] * x[8 * step + i] + TWICE_E2M1[code >> 4] * x[8 * step + 4 + i];
                else
                    sums[output] += (code & 15) * x[8 * step + i] + (code >> 4) * x[8 * step + 4 + i];
            }
}

static void tile(const Weight *weight, const uint8_t *codes, const Tokens *tokens, int64_t row, int rows, int bits,
                 int is_twice, float *out, int64_t stride) {
    const int64_t blocks = weight->inputs / BLOCK, shared = weight->group / BLOCK;
    for (int r = 0; r < rows; r++) {
        const uint8_t *at = codes, *group = codes;
        float sums[OUTPUTS] = {0};
        for (int64_t block = 0; block < blocks; block++, at += OUTPUTS * BLOCK * bits / 8) {
            const int64_t own = (row + r) * blocks + block;
            int32_t found[OUTPUTS], fine[OUTPUTS];
            if (block % shared == 0) group = at, at += 64;
            block_sums(at, tokens->codes + own * BLOCK, bits, is_twice, found);
            block_sums(at, tokens->low + own * BLOCK, bits, is_twice, fine);
            for (int output = 0; output < OUTPUTS; output++) {
                const int32_t all = found[output] * 128 + fine[output] + tokens->starts[own];
                sums[output] += (float)all * (from_half(group + 2 * output) * tokens->scales[own]) +
                                from_half(group + 32 + 2 * output) * tokens->sums[own];
            }
        }
        for (int output = 0; output < OUTPUTS; output++) out[r * stride + output] = sums[output] * weight->factor;
    }
}

/* e4m3 divided by 256: its bits, moved to where fp32 has them, are the value times 2^−120. */
INLINE VF small_e4m3(const uint8_t *codes) {
    const VI wide = __builtin_convertvector(*(const VB *)codes, VI);
    return (VF)((wide & INT32_MIN) | (wide << 20 & 0x07f00000)) * 0x1p112f;
}

#include "product.h"

const Ops quire_plain = OPS("plain C");
