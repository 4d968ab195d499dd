/* The product of some tiles and rows, from `tile` for one tile and a constant number of rows. */
#define CASE(number, bits)                                                                                             \
    case number: tile(weight, codes, tokens, row + done, number, bits, own, stride); break;
#if ROWS_AT_A_TIME > 4
#define MORE_CASES(bits) CASE(5, bits) CASE(6, bits) CASE(7, bits) CASE(8, bits)
#else
#define MORE_CASES(bits)
#endif
#define CASES(bits) CASE(1, bits) CASE(2, bits) CASE(3, bits) CASE(4, bits) MORE_CASES(bits)

TARGET static void NAME(product)(const Weight *weight, const Tokens *tokens, int64_t row, int64_t rows, int64_t begin,
                                 int64_t tiles, float *out, int64_t stride) {
    const int64_t tile_bytes = weight->inputs / weight->group * 64 + OUTPUTS * weight->inputs * weight->bits / 8;
    for (int64_t number = begin; number < begin + tiles; number++) {
        const uint8_t *const codes = weight->tiles + number * tile_bytes;
        for (int64_t done = 0; done < rows; done += ROWS_AT_A_TIME) {
            float *const own = out + (row + done) * stride + number * OUTPUTS;
            const int count = (int)(rows - done < ROWS_AT_A_TIME ? rows - done : ROWS_AT_A_TIME);
            if (weight->bits == 4) {
                switch (count) { CASES(4) }
            } else {
                switch (count) { CASES(8) }
            }
            for (int r = 0; weight->bias && r < count; r++)
                for (int i = 0; i < OUTPUTS; i++) own[r * stride + i] += weight->bias[number * OUTPUTS + i];
        }
    }
}
