/* The product of some tiles and rows, from `tile` for one tile and a constant number of rows. */
#define WAYS 2 /* sums that do not wait for each other */

/* One tile of e4m3 for `rows` tokens. */
INLINE void float_tile(const Weight *weight, const uint8_t *codes, const float *x, const int rows, float *out,
                       int64_t stride) {
    const int64_t inputs = weight->inputs, group = weight->group;
    for (int part = 0; part < OUTPUTS; part += LANES) {
        const uint8_t *at = codes;
        VF sums[ROWS_AT_A_TIME] = {0};
        for (int64_t begin = 0; begin < inputs; begin += group) {
            const VF scale = AT((const float *)at + part) * 256.0f;
            VF own[ROWS_AT_A_TIME][WAYS] = {0};
            at += 64;
            for (int64_t i = begin; i < begin + group; i += WAYS, at += WAYS * OUTPUTS)
                for (int way = 0; way < WAYS; way++) {
                    const VF values = small_e4m3(at + way * OUTPUTS + part);
                    for (int r = 0; r < rows; r++) own[r][way] += values * x[r * inputs + i + way];
                }
            for (int r = 0; r < rows; r++) sums[r] += (own[r][0] + own[r][1]) * scale;
        }
        for (int r = 0; r < rows; r++) PUT(out + r * stride + part) = sums[r];
    }
}

#define NIBBLES(rows) tile(weight, codes, tokens, row + done, rows, 4, 0, own, stride)
#define TWICE(rows) tile(weight, codes, tokens, row + done, rows, 4, 1, own, stride)
#define BYTES(rows) tile(weight, codes, tokens, row + done, rows, 8, 0, own, stride)
#define FLOATS(rows) float_tile(weight, codes, x + (row + done) * weight->inputs, rows, own, stride)
#define CASE(number, product)                                                                                          \
    case number: product(number); break;
#if ROWS_AT_A_TIME > 4
#define MORE_CASES(product) CASE(5, product) CASE(6, product) CASE(7, product) CASE(8, product)
#else
#define MORE_CASES(product)
#endif
#define SWITCH(product)                                                                                                \
    switch (count) { CASE(1, product) CASE(2, product) CASE(3, product) CASE(4, product) MORE_CASES(product) }

TARGET static void NAME(product)(const Weight *weight, const Tokens *tokens, const float *x, int64_t row, int64_t rows,
                                 int64_t begin, int64_t tiles, float *out, int64_t stride) {
    const int64_t tile_bytes = weight->inputs / weight->group * 64 + OUTPUTS * weight->inputs * weight->bits / 8;
    for (int64_t number = begin; number < begin + tiles; number++) {
        const uint8_t *const codes = weight->tiles + number * tile_bytes;
        for (int64_t done = 0; done < rows; done += ROWS_AT_A_TIME) {
            float *const own = out + (row + done) * stride + number * OUTPUTS;
            const int count = (int)(rows - done < ROWS_AT_A_TIME ? rows - done : ROWS_AT_A_TIME);
            if (weight->kind == E4M3) {
                SWITCH(FLOATS)
            } else if (weight->kind == E2M1) {
                SWITCH(TWICE)
            } else if (weight->bits == 4) {
                SWITCH(NIBBLES)
            } else {
                SWITCH(BYTES)
            }
            for (int r = 0; weight->bias && r < count; r++)
                for (int i = 0; i < OUTPUTS; i++) own[r * stride + i] += weight->bias[number * OUTPUTS + i];
        }
    }
}
