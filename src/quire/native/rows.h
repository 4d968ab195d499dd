/* What is computed row by row, for one instruction set: included with LANES, TARGET, NAME and SUM defined. */
#include <math.h>
#include <string.h>

typedef float VF __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t VI __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int8_t VB __attribute__((vector_size(LANES), aligned(1), may_alias));
#define INLINE static inline __attribute__((always_inline)) TARGET
#define AT(pointer) (*(const VF *)(pointer))
#define PUT(pointer) (*(VF *)(pointer))
#define EACH(i, count) (int64_t i = 0; i < (count); i += LANES)

INLINE VF chosen(VI is_first, VF first, VF second) { return (VF)(((VI)first & is_first) | ((VI)second & ~is_first)); }

INLINE VF rounded(VF x) { /* to even, for |x| < 2^22 */
    return (x + 12582912.0f) - 12582912.0f;
}

INLINE VF exponential(VF x) { /* 2^n · e^r with |r| ≤ ln 2 / 2; below e^−87 it is 0 */
    VF low = chosen(x < -87.0f, (VF){0} - 87.0f, x);
    low = chosen(low > 88.0f, (VF){0} + 88.0f, low);
    const VF n = rounded(low * 1.44269504f);
    const VF r = (low - n * 0.693145752f) - n * 1.42860677e-6f;
    VF sum = r * 1.98756915e-4f + 1.39819995e-3f;
    sum = sum * r + 8.33345205e-3f;
    sum = sum * r + 4.16657962e-2f;
    sum = sum * r + 1.66666654e-1f;
    sum = sum * r + 5.0e-1f;
    sum = sum * r * r + r + 1.0f;
    const VI power = (__builtin_convertvector(n, VI) + 127) << 23;
    return chosen(x < -87.0f, (VF){0}, sum * (VF)power);
}

TARGET static void NAME(norm)(const float *x, const float *weight, float epsilon, int64_t count, float *out) {
    VF squares = {0};
    for EACH (i, count) squares += AT(x + i) * AT(x + i);
    const float factor = 1.0f / sqrtf(SUM(squares) / (float)count + epsilon);
    for EACH (i, count) PUT(out + i) = AT(x + i) * factor * AT(weight + i);
}

TARGET static void NAME(add)(float *x, const float *other, int64_t count) {
    for EACH (i, count) PUT(x + i) += AT(other + i);
}

TARGET static void NAME(gate)(const float *gate_up, int64_t count, float *out) {
    for EACH (i, count) {
        const VF gate = AT(gate_up + i);
        PUT(out + i) = gate / (exponential(-gate) + 1.0f) * AT(gate_up + count + i);
    }
}

TARGET static void NAME(rotate)(float *head, const float *cosines, const float *sines, int64_t width) {
    const int64_t half = width / 2;
    for EACH (i, half) {
        const VF first = AT(head + i), second = AT(head + half + i);
        PUT(head + i) = first * AT(cosines + i) - second * AT(sines + i);
        PUT(head + half + i) = second * AT(cosines + half + i) + first * AT(sines + half + i);
    }
}

/* One block: the greatest number gets the code 127 · 128. */
INLINE void quantise_block(const float *x, const Tokens *tokens, int64_t place, int32_t zero) {
    VF greatest = {0}, nothing = {0}; /* nothing: NaN, if a number is infinite or NaN */
    for EACH (i, BLOCK) {
        nothing += AT(x + i) * 0.0f;
        const VF size = chosen(AT(x + i) < 0, -AT(x + i), AT(x + i));
        greatest = chosen(size > greatest, size, greatest);
    }
    float most = 0;
    for (int i = 0; i < LANES; i++) most = greatest[i] > most ? greatest[i] : most;
    const float limit = 127 * 128.0f, scale = most / limit + SUM(nothing);
    const float inverse = most > 1e-30f ? limit / most : 0;
    VI sum = {0};
    for EACH (i, BLOCK) {
        const VI code = __builtin_convertvector(rounded(AT(x + i) * inverse), VI);
        const VI high = (code + 64) >> 7;
        sum += code;
        *(VB *)(tokens->codes + place * BLOCK + i) = __builtin_convertvector(high, VB);
        *(VB *)(tokens->low + place * BLOCK + i) = __builtin_convertvector(code - (high << 7), VB);
    }
    int32_t total = 0;
    for (int i = 0; i < LANES; i++) total += sum[i];
    tokens->scales[place] = scale;
    tokens->sums[place] = scale * (float)total;
    tokens->starts[place] = -zero * total;
}

TARGET static void NAME(quantise)(const float *x, const Tokens *tokens, int64_t row, const Weight *weight) {
    const int64_t blocks = tokens->inputs / BLOCK;
    for (int64_t block = 0; block < blocks; block++) {
        quantise_block(x + block * BLOCK, tokens, row * blocks + block, weight->zero);
    }
}

#define MOST_HEADS 16
INLINE const float *placed(const uint8_t *part, const int64_t *places, int64_t step, int64_t token) {
    return (const float *)(part + places[token] * step);
}

INLINE float dot(const float *x, const float *y, int64_t width) {
    VF sum = {0};
    for EACH (i, width) sum += AT(x + i) * AT(y + i);
    return SUM(sum);
}

TARGET static void NAME(attend)(const Heads *own, const Reading *reading, int64_t begin, int64_t end, float *greatest,
                                float *sums, float *out) {
    const int64_t count = end - begin, heads = own->heads, width = own->width;
    float scores[MOST_HEADS][PIECE + LANES];
    for (int64_t token = 0; token < count; token++) {
        const int is_seen = !reading->seen || reading->seen[begin + token];
        const float *key = is_seen ? placed(own->keys, reading->key_places, own->key_step, begin + token) : 0;
        for (int64_t head = 0; head < heads; head++)
            scores[head][token] = is_seen ? dot(own->queries + head * width, key, width) * own->scale : -INFINITY;
    }
    for (int64_t head = 0; head < heads; head++) {
        float most = -INFINITY;
        for (int64_t token = 0; token < count; token++) most = scores[head][token] > most ? scores[head][token] : most;
        for (int64_t token = count; token < count + LANES; token++) scores[head][token] = -INFINITY;
        const float base = most > -INFINITY ? most : 0;
        VF total = {0};
        for EACH (token, count) {
            PUT(scores[head] + token) = exponential(AT(scores[head] + token) - base);
            total += AT(scores[head] + token);
        }
        greatest[head] = most;
        sums[head] = SUM(total);
    }
    memset(out, 0, (size_t)(heads * width) * sizeof(float));
    for (int64_t token = 0; token < count; token++) {
        if (reading->seen && !reading->seen[begin + token]) continue;
        const float *value = placed(own->values, reading->value_places, own->value_step, begin + token);
        for (int64_t head = 0; head < heads; head++) {
            const float weight = scores[head][token];
            for EACH (i, width) PUT(out + head * width + i) += AT(value + i) * weight;
        }
    }
}

/* (piece, head) and (piece, head, width) into (head, width). */
TARGET static void NAME(combine)(const float *greatest, const float *sums, const float *parts, int64_t pieces,
                                 int64_t heads, int64_t width, float *out) {
    for (int64_t head = 0; head < heads; head++) {
        float most = -INFINITY, total = 0;
        for (int64_t piece = 0; piece < pieces; piece++) {
            const float own = greatest[piece * heads + head];
            most = own > most ? own : most;
        }
        memset(out + head * width, 0, (size_t)width * sizeof(float));
        for (int64_t piece = 0; piece < pieces; piece++) {
            const int64_t place = piece * heads + head;
            const float factor = expf(greatest[place] - most);
            total += sums[place] * factor;
            for EACH (i, width) PUT(out + head * width + i) += AT(parts + place * width + i) * factor;
        }
        for EACH (i, width) PUT(out + head * width + i) /= total;
    }
}

#define OPS(label)                                                                                                     \
    { label, NAME(product), NAME(quantise), NAME(norm), NAME(gate), NAME(rotate), NAME(add), NAME(attend), NAME(combine) }
