/* AVX2: included with NAME, TARGET and HAS_VNNI defined. Half a tile is in one register. */
#include <immintrin.h>

#undef ROWS_AT_A_TIME
#define ROWS_AT_A_TIME 4
#define LANES 8

TARGET static inline float sum_of_8(__m256 x) {
    __m128 half = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    half = _mm_add_ps(half, _mm_movehl_ps(half, half));
    return _mm_cvtss_f32(_mm_add_ss(half, _mm_shuffle_ps(half, half, 1)));
}

#define SUM(x) sum_of_8((__m256)(x))
#include "rows.h"

#define UNROLL _Pragma("GCC unroll 4")
#define HALF (OUTPUTS / 2)

INLINE __m256i four(const int8_t *codes) {
    int32_t found;
    memcpy(&found, codes, sizeof found);
    return _mm256_set1_epi32(found);
}

/* Of codes from 0 to 15 and one block at most: 8 sums of two products each fit into 16 bits. */
INLINE __m256i add_products(__m256i sum, __m256i nibbles, __m256i x) {
#if HAS_VNNI
    return _mm256_dpbusd_avx_epi32(sum, nibbles, x);
#else
    return _mm256_add_epi16(sum, _mm256_maddubs_epi16(nibbles, x));
#endif
}

INLINE __m256i whole(__m256i sum) {
#if HAS_VNNI
    return sum;
#else
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(1));
#endif
}

INLINE __m256i low_nibbles(__m256i both) { return _mm256_and_si256(both, _mm256_set1_epi8(15)); }
INLINE __m256i high_nibbles(__m256i both) { return low_nibbles(_mm256_srli_epi16(both, 4)); }

/* 8 outputs of one block: 4 bits, e2m1 (codes up to 24: half a block fits into 16 bits), 8 bits. */
INLINE __m256i block_of_4(const uint8_t *codes, const int8_t *x) {
    __m256i sum = _mm256_setzero_si256();
    UNROLL for (int k = 0; k < 4; k++) {
        const __m256i both = _mm256_loadu_si256((const __m256i *)(codes + 64 * k));
        sum = add_products(sum, low_nibbles(both), four(x + 8 * k));
        sum = add_products(sum, high_nibbles(both), four(x + 8 * k + 4));
    }
    return whole(sum);
}

INLINE __m256i block_of_e2m1(const uint8_t *codes, const int8_t *x) {
    const __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)TWICE_E2M1));
    __m256i sum = _mm256_setzero_si256();
    UNROLL for (int half = 0; half < 2; half++) {
        __m256i own = _mm256_setzero_si256();
        UNROLL for (int k = 2 * half; k < 2 * half + 2; k++) {
            const __m256i both = _mm256_loadu_si256((const __m256i *)(codes + 64 * k));
            own = add_products(own, _mm256_shuffle_epi8(twice, low_nibbles(both)), four(x + 8 * k));
            own = add_products(own, _mm256_shuffle_epi8(twice, high_nibbles(both)), four(x + 8 * k + 4));
        }
        sum = _mm256_add_epi32(sum, whole(own));
    }
    return sum;
}

INLINE __m256i block_of_8(const uint8_t *codes, const int8_t *x) {
    __m256i low = _mm256_setzero_si256(), high = low;
    UNROLL for (int k = 0; k < 8; k++) {
        const __m256i both = _mm256_loadu_si256((const __m256i *)(codes + 64 * k));
        low = add_products(low, low_nibbles(both), four(x + 4 * k));
        high = add_products(high, high_nibbles(both), four(x + 4 * k));
    }
    return _mm256_add_epi32(_mm256_slli_epi32(whole(high), 4), whole(low));
}

INLINE __m256i block_of(const uint8_t *codes, const int8_t *x, const int bits, const int is_twice) {
    return bits == 8 ? block_of_8(codes, x) : is_twice ? block_of_e2m1(codes, x) : block_of_4(codes, x);
}

INLINE void half_tile(const Weight *weight, const uint8_t *codes, const Tokens *tokens, int64_t row, const int rows,
                      const int bits, const int is_twice, float *out, int64_t stride, const int half) {
    const int64_t inputs = weight->inputs, blocks = inputs / BLOCK, shared = weight->group / BLOCK;
    __m256 sums[ROWS_AT_A_TIME];
    UNROLL for (int r = 0; r < rows; r++) sums[r] = _mm256_setzero_ps();
    for (int64_t block = 0; block < blocks;) {
        const __m256 scale = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(codes + 16 * half)));
        const __m256 minimum = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(codes + 32 + 16 * half)));
        codes += 64;
        for (const int64_t end = block + shared; block < end; block++, codes += OUTPUTS * BLOCK * bits / 8) {
            UNROLL for (int r = 0; r < rows; r++) {
                const int64_t own = (row + r) * blocks + block;
                const uint8_t *const part = codes + 32 * half;
                __m256i found = block_of(part, tokens->codes + own * BLOCK, bits, is_twice);
                const __m256i fine = block_of(part, tokens->low + own * BLOCK, bits, is_twice);
                found = _mm256_add_epi32(_mm256_slli_epi32(found, 7), fine);
                found = _mm256_add_epi32(found, _mm256_set1_epi32(tokens->starts[own]));
                const __m256 factor = _mm256_mul_ps(scale, _mm256_set1_ps(tokens->scales[own]));
                sums[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(found), factor, sums[r]);
                sums[r] = _mm256_fmadd_ps(minimum, _mm256_set1_ps(tokens->sums[own]), sums[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        _mm256_storeu_ps(out + r * stride, _mm256_mul_ps(sums[r], _mm256_set1_ps(weight->factor)));
}

/* Scales, minimums and codes of the second half lie behind the first's. */
INLINE void tile(const Weight *weight, const uint8_t *codes, const Tokens *tokens, int64_t row, const int rows,
                 const int bits, const int is_twice, float *out, int64_t stride) {
    half_tile(weight, codes, tokens, row, rows, bits, is_twice, out, stride, 0);
    half_tile(weight, codes, tokens, row, rows, bits, is_twice, out + HALF, stride, 1);
}

/* e4m3 divided by 256: its bits, moved to where fp16 has them. */
INLINE VF small_e4m3(const uint8_t *codes) {
    const __m128i wide = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)codes));
    return (VF)_mm256_cvtph_ps(_mm_and_si128(_mm_slli_epi16(wide, 7), _mm_set1_epi16((short)0xbf80)));
}

#include "product.h"
