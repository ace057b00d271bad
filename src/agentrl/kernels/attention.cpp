// The backward pass of causal attention over packed rows, for training on a CPU with AMX tiles. Probabilities are computed
// again, a block of queries and keys at a time, and never leave the cache. Compiled for one head size and group
// (-DSIZE=64 -DGROUP=3: the query heads that share a key head).
//
// Everything is laid out by keys: scores are [keys, rows], a row being one query head of one token. Then every factor of
// every product stands as the tiles want it, but for one interleaving of score gradients.

#include "tiles.h"

constexpr int ROWS = 32;             // rows (query heads of tokens) of a block
constexpr int PARTS = SIZE / TILE;   // tiles side by side in a head's vector
constexpr int HALVES = SIZE / DEPTH;

struct Strided {  // [heads, tokens, SIZE], steps in numbers
    bf16 *data;
    int64_t head, token;
    bf16 *at(int64_t h, int64_t t) const { return data + h * head + t * token; }
};

struct Segment {  // tokens [start, end) continue the tokens [prefix_start, prefix_end); `sums` is where its log sums begin
    int64_t start, end, prefix_start, prefix_end;
    const float *sums;  // [query heads, end - start]
};

// Buffers of one key head for as many as `keys` keys (a multiple of 32).
struct Work {
    bf16 *k, *v, *k_turned;    // [keys, SIZE] twice, [SIZE, keys]
    float *grad_k, *grad_v;    // [keys, SIZE]
    int64_t keys;
};

// Two bf16 numbers as the tiles take them: the first in the low half.
static inline uint32_t pair(bf16 first, bf16 second) { return first | (uint32_t)second << 16; }

// A block of rows as right factors, and its gradient.
struct alignas(64) Block {
    uint32_t q[ROWS * SIZE / 2], out_grad[ROWS * SIZE / 2];              // pairs along SIZE: [ROWS / 16][SIZE / 2][16]
    uint32_t q_pairs[ROWS / 2 * SIZE], out_grad_pairs[ROWS / 2 * SIZE];  // pairs of rows: [ROWS / 2][SIZE]
    float grad[SIZE * ROWS];                                             // tiles [PARTS][2][16][16] of [SIZE, ROWS]
    float sum[ROWS], delta[ROWS];
    int32_t last[ROWS];  // the last key that a row sees; -1 past the rows' end
};

static void load_block(Block &b, const Strided &q, const Strided &out, const Strided &grad, const Segment &s, int64_t head,
                       int64_t first) {
    static const bf16 zeros[SIZE] = {};
    const int64_t n = s.end - s.start, prefix = s.prefix_end - s.prefix_start;
    const bf16 *queries[ROWS], *grads[ROWS];
    memset(b.grad, 0, sizeof b.grad);
    for (int r = 0; r < ROWS; r++) {
        const int64_t token = (first + r) / GROUP, h = head * GROUP + (first + r) % GROUP;
        const bool real = token < n;
        const bf16 *o = real ? out.at(h, s.start + token) : zeros;
        queries[r] = real ? q.at(h, s.start + token) : zeros;
        grads[r] = real ? grad.at(h, s.start + token) : zeros;
        float delta = 0.0f;
        for (int d = 0; d < SIZE; d++) delta += widen(o[d]) * widen(grads[r][d]);
        b.delta[r] = delta;
        b.sum[r] = real ? s.sums[h * n + token] : 0.0f;
        b.last[r] = real ? prefix + token : -1;
        for (int d = 0; d < SIZE / 2; d++) {
            const int64_t place = (r / TILE * (SIZE / 2) + d) * TILE + r % TILE;
            memcpy(b.q + place, queries[r] + 2 * d, 4);
            memcpy(b.out_grad + place, grads[r] + 2 * d, 4);
        }
    }
    for (int r = 0; r < ROWS; r += 2)
        for (int d = 0; d < SIZE; d++) {
            b.q_pairs[r / 2 * SIZE + d] = pair(queries[r][d], queries[r + 1][d]);
            b.out_grad_pairs[r / 2 * SIZE + d] = pair(grads[r][d], grads[r + 1][d]);
        }
}

// The left factor's 16 rows against both halves of the block's 32 rows.
static inline void against_rows(const bf16 *left, const uint32_t *right, float *out) {
    _tile_zero(0);
    _tile_zero(1);
    for (int half = 0; half < HALVES; half++) {
        _tile_loadd(4, left + half * DEPTH, SIZE * sizeof(bf16));
        _tile_loadd(5, right + half * TILE * TILE, 64);
        _tile_loadd(6, right + (HALVES + half) * TILE * TILE, 64);
        _tile_dpbf16ps(0, 4, 5);
        _tile_dpbf16ps(1, 4, 6);
    }
    _tile_stored(0, out, ROWS * sizeof(float));
    _tile_stored(1, out + TILE, ROWS * sizeof(float));
}

// total[16 keys, SIZE] += left[16 keys, 32 rows] · right[32 rows, SIZE], the right factor in pairs of rows.
static inline void add_over_rows(const bf16 *left, const uint32_t *right, float *total) {
    _tile_loadd(4, left, ROWS * sizeof(bf16));
    for (int part = 0; part < PARTS; part++) {
        _tile_loadd(0, total + part * TILE, SIZE * sizeof(float));
        _tile_loadd(5, right + part * TILE, SIZE * sizeof(uint32_t));
        _tile_dpbf16ps(0, 4, 5);
        _tile_stored(0, total + part * TILE, SIZE * sizeof(float));
    }
}

static void backward_block(Block &b, const Work &w, int64_t keys, float scale) {
    for (int64_t first = 0; first < keys; first += 2 * TILE) {
        alignas(64) uint32_t pairs[2][TILE][TILE];  // score gradients of 32 keys, two by two: [row half][key pair][row]
        for (int half = 0; half < 2; half++) {
            const int64_t key = first + half * TILE;
            alignas(64) float scores[TILE][ROWS], grads[TILE][ROWS];
            alignas(64) bf16 probs[TILE][ROWS], score_grads[TILE][ROWS];
            against_rows(w.k + key * SIZE, b.q, scores[0]);
            against_rows(w.v + key * SIZE, b.out_grad, grads[0]);
            for (int j = 0; j < TILE; j++) {
                const int32_t place = key + j;
#pragma omp simd
                for (int r = 0; r < ROWS; r++) {
                    const float score = scores[j][r] * scale - b.sum[r];
                    const float p = exponential(place <= b.last[r] ? score : NONE);
                    probs[j][r] = narrow(p);
                    score_grads[j][r] = narrow(p * (grads[j][r] - b.delta[r]) * scale);
                }
            }
            for (int j = 0; j < TILE; j += 2)
#pragma omp simd
                for (int r = 0; r < ROWS; r++)
                    pairs[r / TILE][(half * TILE + j) / 2][r % TILE] = pair(score_grads[j][r], score_grads[j + 1][r]);
            add_over_rows(probs[0], b.out_grad_pairs, w.grad_v + key * SIZE);
            add_over_rows(score_grads[0], b.q_pairs, w.grad_k + key * SIZE);
        }
        _tile_loadd(5, pairs[0], 64);
        _tile_loadd(6, pairs[1], 64);
        for (int part = 0; part < PARTS; part++) {
            float *tiles = b.grad + part * 2 * TILE * TILE;
            _tile_loadd(4, w.k_turned + part * TILE * w.keys + first, w.keys * sizeof(bf16));
            _tile_loadd(0, tiles, 64);
            _tile_loadd(1, tiles + TILE * TILE, 64);
            _tile_dpbf16ps(0, 4, 5);
            _tile_dpbf16ps(1, 4, 6);
            _tile_stored(0, tiles, 64);
            _tile_stored(1, tiles + TILE * TILE, 64);
        }
    }
}

// Keys [from, to) of a work buffer from tokens [token, ...); their gradients start at 0.
static void load_keys(const Work &w, const Strided &k, const Strided &v, int64_t head, int64_t token, int64_t from, int64_t to) {
    for (int64_t i = from; i < to; i++) {
        memcpy(w.k + i * SIZE, k.at(head, token + i - from), SIZE * sizeof(bf16));
        memcpy(w.v + i * SIZE, v.at(head, token + i - from), SIZE * sizeof(bf16));
        for (int d = 0; d < SIZE; d++) w.k_turned[d * w.keys + i] = w.k[i * SIZE + d];
    }
    memset(w.grad_k + from * SIZE, 0, (to - from) * SIZE * sizeof(float));
    memset(w.grad_v + from * SIZE, 0, (to - from) * SIZE * sizeof(float));
}

static void store_keys(const Work &w, const Strided &grad_k, const Strided &grad_v, int64_t head, int64_t token, int64_t from,
                       int64_t to) {
    for (int64_t i = from; i < to; i++)
        for (int d = 0; d < SIZE; d++) {
            grad_k.at(head, token + i - from)[d] = narrow(w.grad_k[i * SIZE + d]);
            grad_v.at(head, token + i - from)[d] = narrow(w.grad_v[i * SIZE + d]);
        }
}

// Gradients of q, k and v. `families` + 1 numbers say where in `segments` each family begins: a segment without a prefix,
// followed by those that continue it. Every key head of a family is one thread's work, so sums have one order.
extern "C" void attention_backward(const Strided *q, const Strided *k, const Strided *v, const Strided *out,
                                   const Strided *grad, const Strided *grad_q, const Strided *grad_k,
                                   const Strided *grad_v, const Segment *segments, const int64_t *family, int64_t families,
                                   int64_t heads, float scale) {
    int64_t longest = 0;
    for (int64_t i = 0; i < family[families]; i++) {
        const int64_t keys = segments[i].end - segments[i].start + segments[i].prefix_end - segments[i].prefix_start;
        longest = keys > longest ? keys : longest;
    }
    const TileConfig config;
#pragma omp parallel
    {
        TileConfig before;
        _tile_storeconfig(&before);
        _tile_loadconfig(&config);
        Work w;
        w.keys = (longest + 2 * TILE - 1) / (2 * TILE) * 2 * TILE;
        bf16 *numbers = new (std::align_val_t(64)) bf16[w.keys * SIZE * 3]();
        float *sums = new (std::align_val_t(64)) float[w.keys * SIZE * 2]();
        w.k = numbers, w.v = w.k + w.keys * SIZE, w.k_turned = w.v + w.keys * SIZE;
        w.grad_k = sums, w.grad_v = sums + w.keys * SIZE;
        Block *block = new Block;
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t f = 0; f < families; f++)
            for (int64_t head = 0; head < heads; head++) {
                const Segment &base = segments[family[f]];
                const int64_t shared = base.end - base.start;
                load_keys(w, *k, *v, head, base.start, 0, shared);
                for (int64_t i = family[f]; i < family[f + 1]; i++) {
                    const Segment &s = segments[i];
                    const int64_t n = s.end - s.start, prefix = s.prefix_end - s.prefix_start;
                    if (i > family[f]) load_keys(w, *k, *v, head, s.start, prefix, prefix + n);
                    for (int64_t first = 0; first < n * GROUP; first += ROWS) {
                        load_block(*block, *q, *out, *grad, s, head, first);
                        const int64_t token = (first + ROWS - 1) / GROUP < n ? (first + ROWS - 1) / GROUP : n - 1;
                        backward_block(*block, w, prefix + token + 1, scale);
                        for (int r = 0; r < ROWS && first + r < n * GROUP; r++) {
                            bf16 *to = grad_q->at(head * GROUP + (first + r) % GROUP, s.start + (first + r) / GROUP);
                            for (int d = 0; d < SIZE; d++)
                                to[d] = narrow(block->grad[((d / TILE * 2 + r / TILE) * TILE + d % TILE) * TILE + r % TILE]);
                        }
                    }
                    if (i > family[f]) store_keys(w, *grad_k, *grad_v, head, s.start, prefix, prefix + n);
                }
                store_keys(w, *grad_k, *grad_v, head, base.start, 0, shared);
            }
        delete block;
        ::operator delete[](numbers, std::align_val_t(64));
        ::operator delete[](sums, std::align_val_t(64));
        _tile_loadconfig(&before);
    }
}
