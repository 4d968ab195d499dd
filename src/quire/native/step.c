/* Layers, phase by phase, for rows that each have one new token, or for tokens whose attention is computed elsewhere.

     0 product     queries, keys, values             5 rows      x += …, norm, in 8 bits
     1 rows        rotated; keys and values written   6 product   gate, up
     2 attention   pieces of rows                     7 rows      silu(gate) · up, in 8 bits
     3 rows        pieces joined, in 8 bits           8 product   down
     4 product     output                             9 rows      x += …, norm, in 8 bits for the next layer

   Before the first layer phase 9 of layer −1 norms x. Behind the last one, `found` has the normed rows. */
#include <string.h>
#include "quire.h"

enum { QUERIES_KEYS_VALUES, ROTATE, ATTEND, JOIN, OUTPUT, NORM, GATE_UP, GATE, DOWN, NEXT, PHASES };
#define ROW_CHUNK 4
#define TILE_CHUNKS 24

typedef struct {
    const Ops *ops;
    const Model *model;
    const Step *step;
    int64_t first; /* phase of the whole model where this call begins */
} Run;

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }
static int64_t parts(int64_t count, int64_t size) { return (count + size - 1) / size; }

/* Phases are numbered from phase 9 of layer −1 on. */
static int64_t sort_of(int64_t phase) { return (phase + NEXT) % PHASES; }
static const Layer *layer_of(const Run *run, int64_t phase) {
    return run->model->layers + ((phase + NEXT) / PHASES - 1);
}

static const Weight *weight_of(const Layer *layer, int64_t sort) {
    switch (sort) {
    case QUERIES_KEYS_VALUES: return &layer->queries_keys_values;
    case OUTPUT: return &layer->output;
    case GATE_UP: return &layer->gate_up;
    case DOWN: return &layer->down;
    default: return NULL;
    }
}

/* Tiles of a chunk: few enough for all threads to have some. */
static int64_t chunk_tiles(const Weight *weight) { return parts(weight->outputs / OUTPUTS, TILE_CHUNKS); }

static int64_t chunks(void *own, int64_t number) {
    const Run *run = own;
    const int64_t phase = run->first + number, sort = sort_of(phase), rows = run->step->rows;
    const Weight *weight = sort == NEXT ? NULL : weight_of(layer_of(run, phase), sort);
    if (weight) return parts(weight->outputs / OUTPUTS, chunk_tiles(weight));
    if (sort == ATTEND) return run->step->readings ? rows * run->step->pieces * run->model->key_heads : 0;
    return parts(rows, ROW_CHUNK);
}

static int64_t line(const Run *run, int64_t sort) { /* of a product's result */
    const Layer *layer = run->model->layers;
    return weight_of(layer, sort)->outputs;
}

static void multiply(const Run *run, const Layer *layer, int64_t sort, int64_t chunk) {
    const Weight *weight = weight_of(layer, sort);
    const Step *step = run->step;
    float *const out = sort == QUERIES_KEYS_VALUES ? step->queries_keys_values : sort == GATE_UP ? step->gate_up : step->found;
    const int64_t own = chunk_tiles(weight), begin = chunk * own;
    Tokens tokens = step->tokens;
    tokens.inputs = weight->inputs;
    run->ops->product(weight, &tokens, NULL, 0, step->rows, begin, least(own, weight->outputs / OUTPUTS - begin), out,
                      weight->outputs);
}

static void quantise(const Run *run, const float *x, int64_t row, const Weight *weight) {
    Tokens tokens = run->step->tokens;
    tokens.inputs = weight->inputs;
    run->ops->quantise(x, &tokens, row, weight);
}

static void rotate(const Run *run, const Layer *layer, int64_t row) {
    const Model *model = run->model;
    const Step *step = run->step;
    const int64_t width = model->width, turned = model->heads + model->key_heads;
    const size_t bytes = (size_t)(model->key_heads * width) * sizeof(float);
    float *const own = step->queries_keys_values + row * line(run, QUERIES_KEYS_VALUES);
    for (int64_t head = 0; head < turned; head++) {
        float *const one = own + head * width;
        if (layer->norm_heads) run->ops->norm(one, layer->norm_heads + head * width, layer->epsilon_heads, width, one);
        if (layer->has_rope) run->ops->rotate(one, step->cosines + row * width, step->sines + row * width, width);
    }
    if (!step->readings) return;
    const Reading *reading = step->readings + layer->kind * step->rows + row;
    memcpy(layer->keys + reading->new_key * layer->key_step, own + model->heads * width, bytes);
    memcpy(layer->values + reading->new_value * layer->value_step, own + turned * width, bytes);
}

static void attend(const Run *run, const Layer *layer, int64_t chunk) {
    const Model *model = run->model;
    const Step *step = run->step;
    const int64_t head = chunk % model->key_heads, place = chunk / model->key_heads, row = place / step->pieces;
    const int64_t shared = model->heads / model->key_heads, width = model->width;
    const Reading *reading = step->readings + layer->kind * step->rows + row;
    const int64_t begin = place % step->pieces * PIECE, first = place * model->heads + head * shared;
    if (begin >= reading->count) return;
    const Heads heads = {
        step->queries_keys_values + row * line(run, QUERIES_KEYS_VALUES) + head * shared * width,
        layer->keys + head * width * (int64_t)sizeof(float), layer->values + head * width * (int64_t)sizeof(float),
        layer->key_step, layer->value_step, shared, width, layer->scale,
    };
    run->ops->attend(&heads, reading, begin, least(begin + PIECE, reading->count), step->greatest + first,
                     step->sums + first, step->parts + first * width);
}

static void join(const Run *run, const Layer *layer, int64_t row) {
    const Model *model = run->model;
    const Step *step = run->step;
    float *const mixed = step->mixed + row * model->heads * model->width;
    if (step->readings) {
        const Reading *reading = step->readings + layer->kind * step->rows + row;
        const int64_t first = row * step->pieces * model->heads;
        run->ops->combine(step->greatest + first, step->sums + first, step->parts + first * model->width,
                          parts(reading->count, PIECE), model->heads, model->width, mixed);
    }
    quantise(run, mixed, row, &layer->output);
}

/* Adds a product's result to x, and norms that for the next one. Behind the last layer nothing is next. */
static void norm_row(const Run *run, int64_t phase, int64_t row) {
    const Model *model = run->model;
    const int64_t hidden = model->hidden, is_inside = sort_of(phase) == NORM;
    const Layer *layer = is_inside ? layer_of(run, phase) : layer_of(run, phase) + 1;
    const int is_last = layer == model->layers + model->count;
    float *const x = run->step->x + row * hidden, *const found = run->step->found + row * line(run, OUTPUT);
    if (phase) run->ops->add(x, found, hidden);
    const float *const weight = is_last ? model->norm : is_inside ? layer->norm_out : layer->norm_in;
    const float epsilon = is_last ? model->epsilon : is_inside ? layer->epsilon_out : layer->epsilon_in;
    run->ops->norm(x, weight, epsilon, hidden, found);
    if (!is_last) quantise(run, found, row, is_inside ? &layer->gate_up : &layer->queries_keys_values);
}

static void gate_row(const Run *run, const Layer *layer, int64_t row) {
    const int64_t inner = run->model->inner;
    float *const both = run->step->gate_up + row * line(run, GATE_UP);
    run->ops->gate(both, inner, both);
    quantise(run, both, row, &layer->down);
}

static void work(void *own, int64_t number, int64_t chunk) {
    const Run *run = own;
    const int64_t phase = run->first + number, sort = sort_of(phase);
    const Layer *layer = layer_of(run, phase);
    if (sort == ATTEND) {
        attend(run, layer, chunk);
        return;
    }
    if (sort != NEXT && weight_of(layer, sort)) {
        multiply(run, layer, sort, chunk);
        return;
    }
    for (int64_t row = chunk * ROW_CHUNK, end = least(row + ROW_CHUNK, run->step->rows); row < end; row++) {
        if (sort == ROTATE) rotate(run, layer, row);
        if (sort == JOIN) join(run, layer, row);
        if (sort == GATE) gate_row(run, layer, row);
        if (sort == NORM || sort == NEXT) norm_row(run, phase, row);
    }
}

/* Phases from `first` up to `end`, numbered from phase 9 of layer −1 on. */
void quire_layers(Team *team, const Ops *ops, const Model *model, const Step *step, int64_t first, int64_t end) {
    Run run = {ops, model, step, first};
    quire_run(team, work, chunks, &run, end - first);
}

/* Rows of a product: each expert's one after another. `ends`: of the rows of each expert that has some. */
typedef struct {
    const Ops *ops;
    const Weight *weight;
    const Tokens *tokens;
    const float *x;
    float *out;
    const int64_t *experts, *ends;
    int64_t rows;
    int64_t count; /* experts that have rows */
} Grouped;

static int64_t tile_chunks(const Weight *weight) { return parts(weight->outputs / OUTPUTS, chunk_tiles(weight)); }

static int64_t grouped_chunks(void *own, int64_t phase) {
    const Grouped *grouped = own;
    if (phase) return grouped->count * tile_chunks(grouped->weight);
    return grouped->weight->kind == E4M3 ? 0 : parts(grouped->rows, ROW_CHUNK);
}

static Weight expert_of(const Weight *weight, int64_t expert) {
    const int64_t groups = weight->inputs / weight->group, bytes = weight->inputs * weight->bits / 8;
    Weight own = *weight;
    own.tiles += expert * (weight->outputs / OUTPUTS) * (64 * groups + OUTPUTS * bytes);
    return own;
}

static void grouped_work(void *own, int64_t phase, int64_t chunk) {
    const Grouped *grouped = own;
    const Weight *weight = grouped->weight;
    const int64_t each = tile_chunks(weight), tiles = chunk_tiles(weight);
    if (phase) {
        const int64_t place = chunk / each, begin = chunk % each * tiles;
        const int64_t row = place ? grouped->ends[place - 1] : 0;
        const Weight expert = expert_of(weight, grouped->experts[place]);
        grouped->ops->product(&expert, grouped->tokens, grouped->x, row, grouped->ends[place] - row, begin,
                              least(tiles, weight->outputs / OUTPUTS - begin), grouped->out, weight->outputs);
        return;
    }
    for (int64_t row = chunk * ROW_CHUNK, end = least(row + ROW_CHUNK, grouped->rows); row < end; row++)
        grouped->ops->quantise(grouped->x + row * weight->inputs, grouped->tokens, row, weight);
}

/* (row, in) by a weight into (row, out), or by the weight of each row's expert. `experts` NULL: the weight is one. */
void quire_multiply(Team *team, const Ops *ops, const Weight *weight, const Tokens *tokens, const float *x, float *out,
                    int64_t rows, const int64_t *experts, const int64_t *ends, int64_t count) {
    const int64_t only = 0;
    Grouped grouped = {ops, weight, tokens, x, out, &only, &rows, rows, 1};
    if (experts) grouped.experts = experts, grouped.ends = ends, grouped.count = count;
    quire_run(team, grouped_work, grouped_chunks, &grouped, 2);
}

const Ops *quire_ops(int number) {
    static const Ops *const all[] = {
#if defined(__x86_64__)
        &quire_avx512_vnni, &quire_avx_vnni, &quire_avx2,
#endif
        &quire_plain,
    };
    return number < (int)(sizeof all / sizeof *all) ? all[number] : NULL;
}

/* By which a library is recognised that was compiled from other sources. */
int64_t quire_size(void) {
    return (int64_t)(sizeof(Weight) + 3 * sizeof(Tokens) + 5 * sizeof(Reading) + 7 * sizeof(Layer) + 11 * sizeof(Model) +
                     13 * sizeof(Step));
}

const char *quire_name(const Ops *ops) { return ops->name; }

/* Whether this processor has the instructions. */
int quire_runs(const Ops *ops) {
#if defined(__x86_64__)
    const int has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    if (ops == &quire_avx512_vnni)
        return has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
               __builtin_cpu_supports("avx512vnni");
    if (ops == &quire_avx_vnni) return has_avx2 && __builtin_cpu_supports("avxvnni");
    if (ops == &quire_avx2) return has_avx2;
#endif
    return ops == &quire_plain;
}
