// Causal attention over packed rows and its backward pass, for training by tiles. Scores are computed a
// block of queries and keys at a time and never leave the cache. Compiled for one head size and group (-DSIZE=64
// -DGROUP=3: the query heads that share a key head).
//
// Everything is laid out by keys: scores are [keys, rows], a row being one query head of one token. Then every factor of
// every product stands as the tiles want it, but for one interleaving of probabilities or score gradients.

#include "tiles.h"

constexpr int ROWS = 32;            // rows (query heads of tokens) of a block
constexpr int PARTS = SIZE / TILE;  // tiles side by side in a head's vector
constexpr int HALVES = SIZE / DEPTH;

struct Strided {  // [heads, tokens, SIZE], steps in numbers
    bf16 *data;
    int64_t head, token;
    bf16 *at(int64_t h, int64_t t) const { return data + h * head + t * token; }
};

struct Segment {  // tokens [start, end) continue the tokens [prefix_start, prefix_end)
    int64_t start, end, prefix_start, prefix_end;
    int64_t length() const { return end - start; }
    int64_t prefix() const { return prefix_end - prefix_start; }
};

// ---- a block of rows

// Two bf16 numbers as the tiles take them: the first in the low half.
static inline uint32_t pair(bf16 first, bf16 second) { return first | (uint32_t)second << 16; }

// Where the vectors of a block's rows lie; rows past the segment's end are zeros.
static void find_rows(const Strided &x, const Segment &s, int64_t head, int64_t first, const bf16 **rows) {
    static const bf16 zeros[SIZE] = {};
    for (int r = 0; r < ROWS; r++) {
        const int64_t token = (first + r) / GROUP;
        rows[r] = token < s.length() ? x.at(head * GROUP + (first + r) % GROUP, s.start + token) : zeros;
    }
}

// As a right factor along SIZE: pairs [ROWS / 16][SIZE / 2][16].
static void arrange_rows(const bf16 *const *rows, uint32_t *out) {
    for (int r = 0; r < ROWS; r++)
        for (int d = 0; d < SIZE / 2; d++) memcpy(out + (r / TILE * (SIZE / 2) + d) * TILE + r % TILE, rows[r] + 2 * d, 4);
}

// As a right factor along the rows: pairs [ROWS / 2][SIZE].
static void pair_rows(const bf16 *const *rows, uint32_t *out) {
    for (int r = 0; r < ROWS; r += 2)
        for (int d = 0; d < SIZE; d++) out[r / 2 * SIZE + d] = pair(rows[r][d], rows[r + 1][d]);
}

// The last key that each row sees; -1 past the rows' end.
static void last_keys(const Segment &s, int64_t first, int32_t *last) {
    for (int r = 0; r < ROWS; r++)
        last[r] = (first + r) / GROUP < s.length() ? s.prefix() + (first + r) / GROUP : -1;
}

// Tiles [PARTS][2][16][16] of [SIZE, ROWS] → the block's rows.
static void store_rows(const float *tiles, const Strided &out, const Segment &s, int64_t head, int64_t first) {
    for (int r = 0; r < ROWS && first + r < s.length() * GROUP; r++) {
        bf16 *row = out.at(head * GROUP + (first + r) % GROUP, s.start + (first + r) / GROUP);
        for (int d = 0; d < SIZE; d++)
            row[d] = narrow(tiles[((d / TILE * 2 + r / TILE) * TILE + d % TILE) * TILE + r % TILE]);
    }
}

// ---- products

// 16 keys against both halves of the block's 32 rows, along SIZE: out[16 keys][32 rows].
static inline void against_rows(const bf16 *keys, const uint32_t *rows, float *out) {
    Tiles tiles;
    tile_zero(0);
    tile_zero(1);
    for (int half = 0; half < HALVES; half++) {
        tile_load(4, keys + half * DEPTH, SIZE * sizeof(bf16));
        tile_load(5, rows + half * TILE * TILE, 64);
        tile_load(6, rows + (HALVES + half) * TILE * TILE, 64);
        tile_add_product(0, 4, 5);
        tile_add_product(1, 4, 6);
    }
    tile_store(0, out, ROWS * sizeof(float));
    tile_store(1, out + TILE, ROWS * sizeof(float));
}

// total[16 keys, SIZE] += left[16 keys, 32 rows] · rows[32 rows, SIZE], in pairs of rows.
static inline void add_over_rows(const bf16 *left, const uint32_t *rows, float *total) {
    Tiles tiles;
    tile_load(4, left, ROWS * sizeof(bf16));
    for (int part = 0; part < PARTS; part++) {
        tile_load(0, total + part * TILE, SIZE * sizeof(float));
        tile_load(5, rows + part * TILE, SIZE * sizeof(uint32_t));
        tile_add_product(0, 4, 5);
        tile_store(0, total + part * TILE, SIZE * sizeof(float));
    }
}

// total[SIZE, 32 rows], in tiles, += turned[SIZE, 32 keys] · pairs[32 keys, 32 rows], in pairs of keys.
static inline void add_over_keys(const bf16 *turned, int64_t stride, const uint32_t (*pairs)[TILE][TILE], float *total) {
    Tiles tiles;
    tile_load(5, pairs[0], 64);
    tile_load(6, pairs[1], 64);
    for (int part = 0; part < PARTS; part++, total += 2 * TILE * TILE) {
        tile_load(4, turned + part * TILE * stride, stride * sizeof(bf16));
        tile_load(0, total, 64);
        tile_load(1, total + TILE * TILE, 64);
        tile_add_product(0, 4, 5);
        tile_add_product(1, 4, 6);
        tile_store(0, total, 64);
        tile_store(1, total + TILE * TILE, 64);
    }
}

// values[16 keys][32 rows] as pairs of keys [row half][key pair][row]; `half` says which 16 of 32 keys.
static inline void pair_keys(const bf16 (*values)[ROWS], int half, uint32_t (*pairs)[TILE][TILE]) {
    for (int j = 0; j < TILE; j += 2)
        for (int side = 0; side < 2; side++)
#pragma omp simd
            for (int r = 0; r < TILE; r++)
                pairs[side][(half * TILE + j) / 2][r] = pair(values[j][side * TILE + r], values[j + 1][side * TILE + r]);
}

// ---- keys

// One key head's keys and values, for as many as `size` keys (a multiple of 32), and what is summed for them.
struct Keys {
    int64_t size;
    bf16 *k, *v, *turned;    // [size, SIZE] twice; one of them turned: [SIZE, size]
    float *grad_k, *grad_v;  // [size, SIZE]; only backward

    Keys(int64_t most, bool backward) : size((most + 2 * TILE - 1) / (2 * TILE) * 2 * TILE) {
        k = new (std::align_val_t(64)) bf16[size * SIZE * 3]();
        v = k + size * SIZE, turned = v + size * SIZE;
        grad_k = backward ? new (std::align_val_t(64)) float[size * SIZE * 2]() : nullptr;
        grad_v = backward ? grad_k + size * SIZE : nullptr;
    }
    ~Keys() {
        ::operator delete[](k, std::align_val_t(64));
        if (grad_k) ::operator delete[](grad_k, std::align_val_t(64));
    }
    Keys(const Keys &) = delete;

    // Keys [from, from + count) from the tokens at `token`; their gradients start at 0. Backward turns k, forward v.
    void load(const Strided &keys, const Strided &values, int64_t head, int64_t token, int64_t from, int64_t count) {
        for (int64_t i = 0; i < count; i++) {
            memcpy(k + (from + i) * SIZE, keys.at(head, token + i), SIZE * sizeof(bf16));
            memcpy(v + (from + i) * SIZE, values.at(head, token + i), SIZE * sizeof(bf16));
            const bf16 *row = (grad_k ? k : v) + (from + i) * SIZE;
            for (int d = 0; d < SIZE; d++) turned[d * size + from + i] = row[d];
        }
        if (!grad_k) return;
        memset(grad_k + from * SIZE, 0, count * SIZE * sizeof(float));
        memset(grad_v + from * SIZE, 0, count * SIZE * sizeof(float));
    }

    void store(const Strided &keys, const Strided &values, int64_t head, int64_t token, int64_t from, int64_t count) const {
        for (int64_t i = 0; i < count; i++)
            for (int d = 0; d < SIZE; d++) {
                keys.at(head, token + i)[d] = narrow(grad_k[(from + i) * SIZE + d]);
                values.at(head, token + i)[d] = narrow(grad_v[(from + i) * SIZE + d]);
            }
    }
};

// ---- forward

// One block of rows over the keys that its last row sees: tiles of [SIZE, ROWS] into out, log sums into sum. The first
// pass finds the sums, the second adds the values up with final probabilities.
static void forward_block(const uint32_t *rows, const int32_t *last, const Keys &keys, int64_t seen, float scale, float *out,
                          float *sum) {
    alignas(64) float scores[TILE][ROWS], top[ROWS], mass[ROWS];
    for (int r = 0; r < ROWS; r++) top[r] = -1e30f, mass[r] = 0.0f;
    for (int64_t key = 0; key < seen; key += TILE) {
        against_rows(keys.k + key * SIZE, rows, scores[0]);
        alignas(64) float highest[ROWS];
        for (int r = 0; r < ROWS; r++) highest[r] = top[r];
        for (int j = 0; j < TILE; j++)
#pragma omp simd
            for (int r = 0; r < ROWS; r++) {
                scores[j][r] = (int32_t)key + j <= last[r] ? scores[j][r] * scale : -1e30f;
                highest[r] = scores[j][r] > highest[r] ? scores[j][r] : highest[r];
            }
#pragma omp simd
        for (int r = 0; r < ROWS; r++) mass[r] *= exponential(top[r] - highest[r]), top[r] = highest[r];
        for (int j = 0; j < TILE; j++)
#pragma omp simd
            for (int r = 0; r < ROWS; r++) mass[r] += exponential(scores[j][r] - top[r]);
    }
    for (int r = 0; r < ROWS; r++) sum[r] = top[r] + std::log(mass[r]);
    for (int64_t first = 0; first < seen; first += 2 * TILE) {
        alignas(64) uint32_t pairs[2][TILE][TILE];
        for (int half = 0; half < 2; half++) {
            alignas(64) bf16 probs[TILE][ROWS];
            const int32_t key = first + half * TILE;
            against_rows(keys.k + key * SIZE, rows, scores[0]);
            for (int j = 0; j < TILE; j++)
#pragma omp simd
                for (int r = 0; r < ROWS; r++)
                    probs[j][r] = narrow(exponential(key + j <= last[r] ? scores[j][r] * scale - sum[r] : NONE));
            pair_keys(probs, half, pairs);
        }
        add_over_keys(keys.turned + first, keys.size, pairs, out);
    }
}

// ---- backward

// A block of rows as right factors, its softmax, and its gradient.
struct alignas(64) Block {
    uint32_t q[ROWS * SIZE / 2], grad[ROWS * SIZE / 2], q_pairs[ROWS / 2 * SIZE], grad_pairs[ROWS / 2 * SIZE];
    float q_grad[SIZE * ROWS];    // tiles of [SIZE, ROWS]
    float sum[ROWS], delta[ROWS];  // log sum; product of the output and its gradient
    int32_t last[ROWS];
};

static void backward_block(Block &b, const Keys &keys, int64_t seen, float scale) {
    for (int64_t first = 0; first < seen; first += 2 * TILE) {
        alignas(64) uint32_t pairs[2][TILE][TILE];
        for (int half = 0; half < 2; half++) {
            const int32_t key = first + half * TILE;
            alignas(64) float scores[TILE][ROWS], grads[TILE][ROWS];
            alignas(64) bf16 probs[TILE][ROWS], score_grads[TILE][ROWS];
            against_rows(keys.k + key * SIZE, b.q, scores[0]);
            against_rows(keys.v + key * SIZE, b.grad, grads[0]);
            for (int j = 0; j < TILE; j++)
#pragma omp simd
                for (int r = 0; r < ROWS; r++) {
                    const float score = scores[j][r] * scale - b.sum[r];
                    const float p = exponential(key + j <= b.last[r] ? score : NONE);
                    probs[j][r] = narrow(p);
                    score_grads[j][r] = narrow(p * (grads[j][r] - b.delta[r]) * scale);
                }
            pair_keys(score_grads, half, pairs);
            add_over_rows(probs[0], b.grad_pairs, keys.grad_v + key * SIZE);
            add_over_rows(score_grads[0], b.q_pairs, keys.grad_k + key * SIZE);
        }
        add_over_keys(keys.turned + first, keys.size, pairs, b.q_grad);
    }
}

static void load_block(Block &b, const Strided &q, const Strided &out, const Strided &grad, const float *sums, int64_t tokens,
                       const Segment &s, int64_t head, int64_t first) {
    const bf16 *queries[ROWS], *grads[ROWS], *outs[ROWS];
    find_rows(q, s, head, first, queries);
    find_rows(grad, s, head, first, grads);
    find_rows(out, s, head, first, outs);
    arrange_rows(queries, b.q);
    arrange_rows(grads, b.grad);
    pair_rows(queries, b.q_pairs);
    pair_rows(grads, b.grad_pairs);
    last_keys(s, first, b.last);
    for (int r = 0; r < ROWS; r++) {
        float delta = 0.0f;
        for (int d = 0; d < SIZE; d++) delta += widen(outs[r][d]) * widen(grads[r][d]);
        b.delta[r] = delta;
        const int64_t token = s.start + (first + r) / GROUP;
        b.sum[r] = token < s.end ? sums[(head * GROUP + (first + r) % GROUP) * tokens + token] : 0.0f;
    }
    memset(b.q_grad, 0, sizeof b.q_grad);
}

// ---- entry points
//
// `family` holds families + 1 numbers: where in `segments` each family begins. A family is a segment without a prefix,
// followed by those that continue it. Every key head of a family is one thread's work, so sums have one order.

static int64_t most_keys(const Segment *segments, int64_t count) {
    int64_t most = 0;
    for (int64_t i = 0; i < count; i++) {
        const int64_t keys = segments[i].prefix() + segments[i].length();
        most = keys > most ? keys : most;
    }
    return most;
}

// The keys that the last row of a block sees.
static int64_t seen_by(const Segment &s, int64_t first) {
    const int64_t token = (first + ROWS - 1) / GROUP;
    return s.prefix() + (token < s.length() ? token : s.length() - 1) + 1;
}

// Fills out, and sums [query heads, tokens].
extern "C" void attention(const Strided *q, const Strided *k, const Strided *v, const Strided *out, float *sums,
                          int64_t tokens, const Segment *segments, const int64_t *family, int64_t families, int64_t heads,
                          float scale) {
#pragma omp parallel
    {
        const UseTiles use;
        Keys keys(most_keys(segments, family[families]), false);
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t f = 0; f < families; f++)
            for (int64_t head = 0; head < heads; head++)
                for (int64_t i = family[f]; i < family[f + 1]; i++) {
                    const Segment &s = segments[i];
                    keys.load(*k, *v, head, s.start, s.prefix(), s.length());
                    for (int64_t first = 0; first < s.length() * GROUP; first += ROWS) {
                        const bf16 *rows[ROWS];
                        alignas(64) uint32_t arranged_rows[ROWS * SIZE / 2];
                        alignas(64) float tiles[SIZE * ROWS] = {}, sum[ROWS];
                        int32_t last[ROWS];
                        find_rows(*q, s, head, first, rows);
                        arrange_rows(rows, arranged_rows);
                        last_keys(s, first, last);
                        forward_block(arranged_rows, last, keys, seen_by(s, first), scale, tiles, sum);
                        store_rows(tiles, *out, s, head, first);
                        for (int r = 0; r < ROWS && first + r < s.length() * GROUP; r++)
                            sums[(head * GROUP + (first + r) % GROUP) * tokens + s.start + (first + r) / GROUP] = sum[r];
                    }
                }
    }
}

extern "C" void attention_backward(const Strided *q, const Strided *k, const Strided *v, const Strided *out,
                                   const Strided *grad, const Strided *grad_q, const Strided *grad_k,
                                   const Strided *grad_v, const float *sums, int64_t tokens, const Segment *segments,
                                   const int64_t *family, int64_t families, int64_t heads, float scale) {
#pragma omp parallel
    {
        const UseTiles use;
        Keys keys(most_keys(segments, family[families]), true);
        Block *block = new Block;
#pragma omp for collapse(2) schedule(dynamic, 1)
        for (int64_t f = 0; f < families; f++)
            for (int64_t head = 0; head < heads; head++) {
                const Segment &base = segments[family[f]];
                for (int64_t i = family[f]; i < family[f + 1]; i++) {
                    const Segment &s = segments[i];
                    keys.load(*k, *v, head, s.start, s.prefix(), s.length());
                    for (int64_t first = 0; first < s.length() * GROUP; first += ROWS) {
                        load_block(*block, *q, *out, *grad, sums, tokens, s, head, first);
                        backward_block(*block, keys, seen_by(s, first), scale);
                        store_rows(block->q_grad, *grad_q, s, head, first);
                    }
                    if (i > family[f]) keys.store(*grad_k, *grad_v, head, s.start, s.prefix(), s.length());
                }
                keys.store(*grad_k, *grad_v, head, base.start, 0, base.length());
            }
        delete block;
    }
}
