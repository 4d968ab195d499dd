/* AVX-512 with its dot products of bytes (VNNI). */
#include "quire.h"
#if defined(__x86_64__)
#include <immintrin.h>

#define LANES 16
#define TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")))
#define NAME(name) name##_avx512
#define SUM(x) _mm512_reduce_add_ps((__m512)(x))
#include "rows.h"

#define UNROLL _Pragma("GCC unroll 8")

INLINE __m512i four(const int8_t *codes) {
    int32_t found;
    memcpy(&found, codes, sizeof found);
    return _mm512_set1_epi32(found);
}

INLINE __m512i dot_bytes(__m512i sum, __m512i weight, const int8_t *codes) {
    return _mm512_dpbusd_epi32(sum, weight, four(codes));
}

/* One tile for `rows` tokens, which is a constant where this is inlined. */
INLINE void tile(const Weight *weight, const uint8_t *codes, const Tokens *tokens, int64_t row, const int rows,
                 const int bits, const int is_twice, float *out, int64_t stride) {
    const int64_t inputs = weight->inputs, blocks = inputs / BLOCK, shared = weight->group / BLOCK;
    const int8_t *const high = tokens->codes + row * inputs, *const low = tokens->low + row * inputs;
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i twice = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)TWICE_E2M1));
    __m512 sums[ROWS_AT_A_TIME];
    UNROLL for (int r = 0; r < rows; r++) sums[r] = _mm512_setzero_ps();
    for (int64_t block = 0; block < blocks;) {
        const __m512 scale = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)codes));
        const __m512 minimum = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(codes + 32)));
        codes += 64;
        for (const int64_t end = block + shared; block < end; block++) {
            __m512i found[ROWS_AT_A_TIME], fine[ROWS_AT_A_TIME];
            const int64_t own = row * blocks + block;
            UNROLL for (int r = 0; r < rows; r++) {
                found[r] = _mm512_setzero_si512();
                fine[r] = _mm512_set1_epi32(tokens->starts[own + r * blocks]);
            }
            if (bits == 4) {
                UNROLL for (int k = 0; k < 4; k++, codes += 64) {
                    const __m512i both = _mm512_loadu_si512(codes);
                    __m512i even = _mm512_and_si512(both, nibble);
                    __m512i odd = _mm512_and_si512(_mm512_srli_epi16(both, 4), nibble);
                    if (is_twice) even = _mm512_shuffle_epi8(twice, even), odd = _mm512_shuffle_epi8(twice, odd);
                    UNROLL for (int r = 0; r < rows; r++) {
                        const int64_t place = r * inputs + block * BLOCK + 8 * k;
                        found[r] = dot_bytes(dot_bytes(found[r], even, high + place), odd, high + place + 4);
                        fine[r] = dot_bytes(dot_bytes(fine[r], even, low + place), odd, low + place + 4);
                    }
                }
            } else {
                UNROLL for (int k = 0; k < 8; k++, codes += 64) {
                    const __m512i all = _mm512_loadu_si512(codes);
                    UNROLL for (int r = 0; r < rows; r++) {
                        const int64_t place = r * inputs + block * BLOCK + 4 * k;
                        found[r] = dot_bytes(found[r], all, high + place);
                        fine[r] = dot_bytes(fine[r], all, low + place);
                    }
                }
            }
            UNROLL for (int r = 0; r < rows; r++) {
                const __m512i all = _mm512_add_epi32(_mm512_slli_epi32(found[r], 7), fine[r]);
                const __m512 factor = _mm512_mul_ps(scale, _mm512_set1_ps(tokens->scales[own + r * blocks]));
                sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(all), factor, sums[r]);
                sums[r] = _mm512_fmadd_ps(minimum, _mm512_set1_ps(tokens->sums[own + r * blocks]), sums[r]);
            }
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        _mm512_storeu_ps(out + r * stride, _mm512_mul_ps(sums[r], _mm512_set1_ps(weight->factor)));
}

/* e4m3 divided by 256: its bits, moved to where fp16 has them. */
INLINE VF small_e4m3(const uint8_t *codes) {
    const __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)codes));
    return (VF)_mm512_cvtph_ps(_mm256_and_si256(_mm256_slli_epi16(wide, 7), _mm256_set1_epi16((short)0xbf80)));
}

#include "product.h"

const Ops quire_avx512_vnni = OPS("AVX-512 VNNI");
#endif
