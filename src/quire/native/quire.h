/* Products of packed weights and whole layers of llama's sort, in C. See __init__.py for how it is built and called.

     weight    tiles of 16 outputs; for each group of inputs 16 scales and 16 minimums in fp16, then the codes:
               4 bits   64 bytes for 8 inputs: input i of 8 is the low nibble of byte 4·output + i for i < 4, the high
                        nibble of byte 4·output + i − 4 for others
               8 bits   64 bytes for 4 inputs: byte 4·output + i, as code + 128
               e2m1     as 4 bits; a code stands for twice its value
               e4m3     16 scales in fp32 instead of scales and minimums; 16 bytes for each input
     experts   one after another, each in whole tiles
     tokens    blocks of 32 inputs with one scale each, in 15 bits: 128 · code + low; fp32 for e4m3

   The result of a row never depends on the others: every row is multiplied and summed in one order. */
#ifndef QUIRE_H
#define QUIRE_H
#include <stdint.h>

#define OUTPUTS 16
#define BLOCK 32
#define ROWS_AT_A_TIME 8
#define PIECE 256 /* tokens that attention reads at a time */

enum { WHOLE, E2M1, E4M3 }; /* what codes are: integers, floats of 4 or of 8 bits */

typedef struct {
    const uint8_t *tiles;
    const float *bias; /* NULL: none */
    int64_t outputs, inputs; /* of one expert; outputs filled up to whole tiles */
    int32_t group, bits;
    int32_t zero;  /* what a code means less than its number */
    int32_t kind;
    float factor;  /* of scales and minimums */
} Weight;

/* Of e2m1: twice the value, plus the weight's zero. */
static const uint8_t TWICE_E2M1[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

typedef struct {
    int8_t *codes, *low;
    float *scales, *sums; /* of each block: its scale, and the sum of its inputs */
    int32_t *starts;      /* of each block: −zero · sum of its codes */
    int64_t inputs;
} Tokens;

/* What one row reads of one kind, and where it writes. Places count steps of the layer's `key_step` and `value_step`. */
typedef struct {
    const int64_t *key_places, *value_places;
    const uint8_t *seen; /* NULL: all */
    int64_t count, new_key, new_value;
} Reading;

typedef struct {
    Weight queries_keys_values, output, gate_up, down;
    const float *norm_in, *norm_out, *norm_heads; /* norm_heads: (turned head, width), NULL: none */
    uint8_t *keys, *values;                       /* at place 0 */
    int64_t key_step, value_step;                 /* bytes from one place to the next */
    float epsilon_in, epsilon_out, epsilon_heads, scale;
    int32_t kind, has_rope;
} Layer;

typedef struct {
    const Layer *layers;
    const float *norm;
    int64_t count, hidden, inner, heads, key_heads, width;
    float epsilon;
} Model;

/* Some tokens on their way through the layers; all buffers have a line for each. */
typedef struct {
    float *x, *queries_keys_values, *mixed, *gate_up, *found; /* found: a line of any product, or of what follows it */
    const float *cosines, *sines;
    const Reading *readings; /* (kind, row); NULL: attention is computed elsewhere */
    float *greatest, *sums, *parts;
    int64_t rows, pieces; /* of each row at most */
    Tokens tokens;
} Step;

/* One piece of attention for heads that share keys: where rows are summed up. */
typedef struct {
    const float *queries;
    const uint8_t *keys, *values; /* of this head, at place 0 */
    int64_t key_step, value_step, heads, width;
    float scale;
} Heads;

/* What each instruction set has a version of. */
typedef struct {
    const char *name;
    /* `x`: the tokens in fp32, which only e4m3 reads. */
    void (*product)(const Weight *, const Tokens *, const float *x, int64_t row, int64_t rows, int64_t tile,
                    int64_t tiles, float *out, int64_t stride);
    void (*quantise)(const float *x, const Tokens *, int64_t row, const Weight *);
    void (*norm)(const float *x, const float *weight, float epsilon, int64_t count, float *out);
    void (*gate)(const float *gate_up, int64_t count, float *out);
    void (*rotate)(float *head, const float *cosines, const float *sines, int64_t width);
    void (*add)(float *x, const float *other, int64_t count);
    /* Adds up exp(score − greatest) and the values weighted so, for tokens from `begin` to `end` of a row. */
    void (*attend)(const Heads *, const Reading *, int64_t begin, int64_t end, float *greatest, float *sums, float *out);
    void (*combine)(const float *greatest, const float *sums, const float *parts, int64_t pieces, int64_t heads,
                    int64_t width, float *out);
} Ops;

extern const Ops quire_plain;
#if defined(__x86_64__)
extern const Ops quire_avx2, quire_avx_vnni, quire_avx512_vnni;
#endif

/* A team of threads: `work` is called for every chunk of every phase, phases one after another. */
typedef void (*Work)(void *own, int64_t phase, int64_t chunk);
typedef int64_t (*Chunks)(void *own, int64_t phase);
typedef struct Team Team;
void quire_run(Team *team, Work work, Chunks chunks, void *own, int64_t phases);

#endif
