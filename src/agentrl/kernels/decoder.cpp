// One decode step of a Llama-like decoder on a CPU that multiplies tiles: one new token for each of a few sequences.
//
// Such a step is bound by memory: all weights and all live keys and values are read once, and little is computed. So the
// weights are read as they lie in memory, straight into tiles; attention reads each slot's live tokens only; and all
// layers run in one parallel region. A sequence's result does not depend on the others. Numbers are rounded to bf16
// where PyTorch's modules round them. Compiled for one head size and group (-DSIZE=64 -DGROUP=3: the query heads that
// share a key head).

#include "tiles.h"

// ---- products of few rows with a weight

constexpr int WIDTH = 4;   // tiles of rows that one pass over a weight serves

// 16 rows of a weight against 16 * TILES arranged rows: fp32 tiles [TILES][16 of the weight][16 rows] into out.
template <int TILES>
static inline void product(const bf16 *w, const bf16 *next, const bf16 *x, int64_t k, float *out) {
    Tiles tiles;
    tile_zero(0);
    if (TILES > 1) tile_zero(1);
    if (TILES > 2) tile_zero(2);
    if (TILES > 3) tile_zero(3);
    for (int64_t d = 0; d < k; d += DEPTH) {
        for (int line = 0; line < TILE; line++) _mm_prefetch(next + d * TILE + line * DEPTH, _MM_HINT_T1);
        const bf16 *tile = x + d * TILE;
        tile_load(4, w + d, k * sizeof(bf16));
        tile_load(5, tile, 64);
        tile_add_product(0, 4, 5);
        if (TILES > 1) {
            tile_load(6, tile + TILE * k, 64);
            tile_add_product(1, 4, 6);
        }
        if (TILES > 2) {
            tile_load(5, tile + 2 * TILE * k, 64);
            tile_add_product(2, 4, 5);
        }
        if (TILES > 3) {
            tile_load(6, tile + 3 * TILE * k, 64);
            tile_add_product(3, 4, 6);
        }
    }
    tile_store(0, out, 64);
    if (TILES > 1) tile_store(1, out + TILE * TILE, 64);
    if (TILES > 2) tile_store(2, out + 2 * TILE * TILE, 64);
    if (TILES > 3) tile_store(3, out + 3 * TILE * TILE, 64);
}

// y[0..m, 0..16] (rows `stride` apart) = x · wᵀ (+ bias) (+ what y holds) for 16 rows of a weight.
static void multiply(const bf16 *w, const bf16 *next, const bf16 *x, const bf16 *bias, bf16 *y, int64_t stride, int64_t m,
                     int64_t k, bool add) {
    alignas(64) float out[WIDTH * TILE * TILE];
    const __m512i column = _mm512_set_epi32(240, 224, 208, 192, 176, 160, 144, 128, 112, 96, 80, 64, 48, 32, 16, 0);
    for (int64_t first = 0; first < m; first += WIDTH * TILE) {
        const int64_t left = m - first, tiles = (left + TILE - 1) / TILE;
        const bf16 *from = x + first * k;
        if (tiles == 1) product<1>(w, next, from, k, out);
        if (tiles == 2) product<2>(w, next, from, k, out);
        if (tiles == 3) product<3>(w, next, from, k, out);
        if (tiles >= 4) product<4>(w, next, from, k, out);
        for (int64_t i = 0; i < left && i < WIDTH * TILE; i++) {
            const __m512 values = _mm512_i32gather_ps(column, out + i / TILE * TILE * TILE + i % TILE, 4);
            bf16 *row = y + (first + i) * stride;
            if (!bias && !add) {
                _mm256_storeu_si256((__m256i *)row, (__m256i)_mm512_cvtneps_pbh(values));
                continue;
            }
            float part[TILE];
            _mm512_storeu_ps(part, values);
            for (int j = 0; j < TILE; j++) {
                float value = bias ? part[j] + widen(bias[j]) : part[j];
                row[j] = narrow(add ? rounded(value) + widen(row[j]) : value);
            }
        }
    }
}

// Shared by the threads of a parallel region: every thread takes its part of the weight's rows; no barrier at the end.
static void linear(const bf16 *w, const bf16 *bias, const bf16 *x, bf16 *y, int64_t m, int64_t n, int64_t k,
                   bool add = false) {
#pragma omp for schedule(static) nowait
    for (int64_t row = 0; row < n; row += TILE) {
        const bf16 *weight = w + row * k, *next = row + TILE < n ? weight + TILE * k : weight;
        multiply(weight, next, x, bias ? bias + row : nullptr, y + row, n, m, k, add);
    }
}

// ---- attention over the slots

static inline void prefetch(const bf16 *row) {
    for (int d = 0; d < SIZE; d += DEPTH) __builtin_prefetch(row + d);
}

constexpr int BLOCK = 64;  // keys whose scores exist at one time

struct Tokens {  // keys and values [.., SIZE] of one slot and key head
    const bf16 *k, *v;
};

// One slot and one key head: query [GROUP, SIZE], out [GROUP, SIZE] at out(g), over the tokens [first, end). Blocks that lie
// within the first `shared` tokens are read from another slot, where they are the same. Softmax is online.
static void attend(const float query[GROUP][SIZE], const Tokens &own, const Tokens &other, int64_t shared, int64_t first,
                   int64_t end, float scale, float out[GROUP][SIZE]) {
    float score[GROUP][BLOCK], top[GROUP], total[GROUP] = {};
    memset(out, 0, sizeof(float) * GROUP * SIZE);
    for (int g = 0; g < GROUP; g++) top[g] = -1e30f;
    for (int64_t start = first; start < end; start += BLOCK) {
        const int count = end - start < BLOCK ? end - start : BLOCK;
        const bf16 *k = start + BLOCK <= shared ? other.k : own.k, *v = start + BLOCK <= shared ? other.v : own.v;
        const bf16 *next = start + 2 * BLOCK <= shared ? other.k : own.k;
        for (int j = 0; j < count; j++) {
            prefetch(v + (start + j) * SIZE);
            float dot[GROUP] = {};
            for (int d = 0; d < SIZE; d++) {
                const float key = widen(k[(start + j) * SIZE + d]);
                for (int g = 0; g < GROUP; g++) dot[g] += query[g][d] * key;
            }
            for (int g = 0; g < GROUP; g++) score[g][j] = dot[g] * scale;
        }
        for (int g = 0; g < GROUP; g++) {
            float highest = top[g], mass = 0.0f;
            for (int j = 0; j < count; j++) highest = score[g][j] > highest ? score[g][j] : highest;
            for (int j = 0; j < count; j++) {
                score[g][j] = exponential(score[g][j] - highest);
                mass += score[g][j];
            }
            const float shrink = exponential(top[g] - highest);
            for (int d = 0; d < SIZE; d++) out[g][d] *= shrink;
            total[g] = total[g] * shrink + mass;
            top[g] = highest;
        }
        for (int j = 0; j < count; j++) {
            prefetch(next + (start + BLOCK + j) * SIZE);
            for (int d = 0; d < SIZE; d++) {
                const float value = widen(v[(start + j) * SIZE + d]);
                for (int g = 0; g < GROUP; g++) out[g][d] += score[g][j] * value;
            }
        }
    }
    for (int g = 0; g < GROUP; g++)
        for (int d = 0; d < SIZE; d++) out[g][d] /= total[g];
}

// ---- a layer

static void normalise(const bf16 *x, const bf16 *weight, int64_t size, float eps, float *out) {
    float squares = 0.0f;
    for (int64_t d = 0; d < size; d++) squares += widen(x[d]) * widen(x[d]);
    const float factor = 1.0f / std::sqrt(squares / size + eps);
    for (int64_t d = 0; d < size; d++) out[d] = rounded(rounded(widen(x[d]) * factor) * widen(weight[d]));
}

// A head's vector: its own norm where the family has one, then the rotation by cos, sin [SIZE].
static void rotate(const bf16 *x, const bf16 *weight, float eps, const bf16 *cos, const bf16 *sin, float *out) {
    float head[SIZE];
    if (weight) normalise(x, weight, SIZE, eps, head);
    else for (int d = 0; d < SIZE; d++) head[d] = widen(x[d]);
    for (int d = 0; d < SIZE / 2; d++) {
        const int e = d + SIZE / 2;
        out[d] = rounded(rounded(head[d] * widen(cos[d])) + rounded(-head[e] * widen(sin[d])));
        out[e] = rounded(rounded(head[e] * widen(cos[e])) + rounded(head[d] * widen(sin[e])));
    }
}

struct Layer {  // as kernels/decoder.py lays it out; weights are [out, in]; a missing bias or norm is null
    const bf16 *norm, *q, *k, *v, *q_bias, *k_bias, *v_bias, *q_norm, *k_norm, *o, *o_bias, *mlp_norm, *gate, *up, *down;
    bf16 *keys, *values;  // [slots, heads, capacity, SIZE]
    int64_t window;       // tokens seen; 0 is all
};

struct Shape {
    int64_t hidden, middle, heads, capacity;  // heads: key heads
    float eps, scale;
};

static int64_t padded(int64_t m) { return (m + TILE - 1) / TILE * TILE; }

// Numbers of scratch memory that `decode` needs for m sequences.
extern "C" int64_t scratch(const Shape *shape, int64_t m) {
    const int64_t width = shape->heads * SIZE, widest = shape->middle > width * GROUP ? shape->middle : width * GROUP;
    const int64_t deepest = widest > shape->hidden ? widest : shape->hidden;
    return padded(m) * deepest + m * (width * (GROUP + 2) + 2 * shape->middle);
}

// hidden [m, hidden]: embeddings in, normalised last states out. cos, sin [m, SIZE]. Token i becomes token lengths[i] of
// slot i, whose first shared[i] tokens are the same as in slot leaders[i]: slots with one leader that stand near each other
// read them from memory once.
extern "C" void decode(const Shape *shape, const Layer *layers, int64_t count, const bf16 *norm, bf16 *hidden,
                       const bf16 *cos, const bf16 *sin, const int64_t *lengths, const int64_t *leaders,
                       const int64_t *shared, int64_t m, bf16 *memory) {
    const int64_t size = shape->hidden, middle = shape->middle, heads = shape->heads, width = heads * SIZE;
    const int64_t widest = middle > width * GROUP ? middle : width * GROUP;
    bf16 *x = memory, *q = x + padded(m) * (widest > size ? widest : size), *k = q + m * width * GROUP;
    bf16 *v = k + m * width, *gate = v + m * width, *up = gate + m * middle;
#pragma omp parallel
    {
        const UseTiles use;
        float *row = new float[size];
        const auto normalised = [&](const bf16 *weight) {
#pragma omp for schedule(static)
            for (int64_t i = 0; i < m; i++) {
                normalise(hidden + i * size, weight, size, shape->eps, row);
                for (int64_t d = 0; d < size; d++) arranged(x, i, d, size) = narrow(row[d]);
            }
        };
        for (const Layer *layer = layers; layer < layers + count; layer++) {
            normalised(layer->norm);
            linear(layer->q, layer->q_bias, x, q, m, width * GROUP, size);
            linear(layer->k, layer->k_bias, x, k, m, width, size);
            linear(layer->v, layer->v_bias, x, v, m, width, size);
#pragma omp barrier
#pragma omp for collapse(2) schedule(dynamic, 1)
            for (int64_t slot = 0; slot < m; slot++)
                for (int64_t head = 0; head < heads; head++) {
                    const int64_t place = (slot * heads + head) * shape->capacity * SIZE;
                    const int64_t other = (leaders[slot] * heads + head) * shape->capacity * SIZE;
                    bf16 *keys = layer->keys + place, *values = layer->values + place;
                    const int64_t length = lengths[slot], end = length + 1;
                    const bf16 *c = cos + slot * SIZE, *s = sin + slot * SIZE;
                    float query[GROUP][SIZE], out[GROUP][SIZE];
                    rotate(k + slot * width + head * SIZE, layer->k_norm, shape->eps, c, s, query[0]);
                    for (int d = 0; d < SIZE; d++) keys[length * SIZE + d] = narrow(query[0][d]);
                    memcpy(values + length * SIZE, v + slot * width + head * SIZE, SIZE * sizeof(bf16));
                    for (int g = 0; g < GROUP; g++)
                        rotate(q + (slot * heads + head) * GROUP * SIZE + g * SIZE, layer->q_norm, shape->eps, c, s, query[g]);
                    attend(query, {keys, values}, {layer->keys + other, layer->values + other}, shared[slot],
                           layer->window > 0 && end > layer->window ? end - layer->window : 0, end, shape->scale, out);
                    for (int g = 0; g < GROUP; g++)
                        for (int d = 0; d < SIZE; d++)
                            arranged(x, slot, (head * GROUP + g) * SIZE + d, width * GROUP) = narrow(out[g][d]);
                }
            linear(layer->o, layer->o_bias, x, hidden, m, size, width * GROUP, true);
#pragma omp barrier
            normalised(layer->mlp_norm);
            linear(layer->gate, nullptr, x, gate, m, middle, size);
            linear(layer->up, nullptr, x, up, m, middle, size);
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t i = 0; i < m; i++)
                for (int64_t d = 0; d < middle; d++) {
                    const float g = widen(gate[i * middle + d]), e = exponential(-std::fabs(g));
                    const float silu = rounded(g > 0 ? g / (1.0f + e) : g * e / (1.0f + e));
                    arranged(x, i, d, middle) = narrow(silu * widen(up[i * middle + d]));
                }
            linear(layer->down, nullptr, x, hidden, m, size, middle, true);
#pragma omp barrier
        }
#pragma omp for schedule(static)
        for (int64_t i = 0; i < m; i++) {
            normalise(hidden + i * size, norm, size, shape->eps, row);
            for (int64_t d = 0; d < size; d++) hidden[i * size + d] = narrow(row[d]);
        }
        delete[] row;
    }
}

// y [m, n] = x [m, k] · wᵀ, the language-model head; memory holds m, rounded up to 16, times k numbers.
extern "C" void head(const bf16 *x, const bf16 *w, bf16 *y, int64_t m, int64_t n, int64_t k, bf16 *memory) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t d = 0; d < k; d++) arranged(memory, i, d, k) = x[i * k + d];
#pragma omp parallel
    {
        const UseTiles use;
        linear(w, nullptr, memory, y, m, n, k);
    }
}
