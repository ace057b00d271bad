// The gradient of a linear layer's weight by tiles: total [outs, ins] (+)= gradᵀ [outs, tokens] · x [tokens,
// ins], summed in fp32. Both factors lie the wrong way round for a matrix product, so they are put into tiles first: x
// as a whole, grad a few panels of a block of tokens at a time. Every number of the total is summed by one thread, in the
// tokens' order.

#include "tiles.h"

#include <algorithm>
#include <omp.h>

constexpr int PANEL = 2 * TILE;          // columns of a factor that stand together
constexpr int64_t STEP = PANEL * DEPTH;  // numbers of a panel for DEPTH tokens: two tiles
constexpr int64_t BLOCK = 10 * DEPTH;    // tokens of a panel, which then fits into the first cache twice
constexpr int64_t KEPT = 400000;         // numbers of the total that a core works on at one time: its second cache

// 16 vectors of 16 pairs of bf16 numbers, turned round.
static inline void transpose(__m512i *rows) {
    __m512i other[TILE];
    for (int i = 0; i < TILE; i += 2) {
        other[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        other[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < TILE; i += 4)
        for (int half = 0; half < 2; half++) {
            rows[i + 2 * half] = _mm512_unpacklo_epi64(other[i + half], other[i + 2 + half]);
            rows[i + 2 * half + 1] = _mm512_unpackhi_epi64(other[i + half], other[i + 2 + half]);
        }
    // Now part p of vector 4q + r holds pairs 4q..4q+3 of row 4p + r: a transpose of whole parts remains.
    for (int r = 0; r < 4; r++) {
        const __m512i a = _mm512_shuffle_i32x4(rows[r], rows[4 + r], 0x88), b = _mm512_shuffle_i32x4(rows[r], rows[4 + r], 0xdd);
        const __m512i c = _mm512_shuffle_i32x4(rows[8 + r], rows[12 + r], 0x88);
        const __m512i d = _mm512_shuffle_i32x4(rows[8 + r], rows[12 + r], 0xdd);
        other[r] = _mm512_shuffle_i32x4(a, c, 0x88), other[8 + r] = _mm512_shuffle_i32x4(a, c, 0xdd);
        other[4 + r] = _mm512_shuffle_i32x4(b, d, 0x88), other[12 + r] = _mm512_shuffle_i32x4(b, d, 0xdd);
    }
    for (int i = 0; i < TILE; i++) rows[i] = other[i];
}

// A panel's columns of DEPTH tokens as two tiles: right factors [16 pairs of tokens][16 columns], or turned round as left
// ones. Tokens past `count` are zeros.
static inline void arrange_step(const bf16 *x, int64_t stride, int64_t count, bool left, bf16 *tiles) {
    const __m512i order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0), none = _mm512_setzero_si512();
    __m512i low[TILE], high[TILE];  // pairs of the first 16 columns, and of the others
    for (int p = 0; p < TILE; p++) {
        const __m512i first = 2 * p < count ? _mm512_loadu_si512(x + 2 * p * stride) : none;
        const __m512i second = 2 * p + 1 < count ? _mm512_loadu_si512(x + (2 * p + 1) * stride) : none;
        const __m512i a = _mm512_permutexvar_epi64(order, first), b = _mm512_permutexvar_epi64(order, second);
        low[p] = _mm512_unpacklo_epi16(a, b), high[p] = _mm512_unpackhi_epi16(a, b);
    }
    if (left) transpose(low), transpose(high);
    for (int p = 0; p < TILE; p++) {
        _mm512_store_si512(tiles + p * DEPTH, low[p]);
        _mm512_store_si512(tiles + STEP / 2 + p * DEPTH, high[p]);
    }
}

// The same for neighbouring panels, `size` numbers apart: a row is read from one end to the other.
static void arrange(const bf16 *x, int64_t stride, int64_t count, int64_t panels, bool left, bf16 *tiles, int64_t size) {
    for (int64_t p = 0; p < panels; p++) arrange_step(x + p * PANEL, stride, count, left, tiles + p * size);
}

// A square of the total, PANEL wide, from one panel of each factor. The left one stays in the first cache for many
// squares; the right ones pass by it.
static inline void multiply(const bf16 *left, const bf16 *right, int64_t steps, bool add, float *total, int64_t stride) {
    Tiles tiles;
    float *below = total + TILE * stride;
    if (add) {
        tile_load(0, total, stride * sizeof(float));
        tile_load(1, total + TILE, stride * sizeof(float));
        tile_load(2, below, stride * sizeof(float));
        tile_load(3, below + TILE, stride * sizeof(float));
    } else {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    }
    for (int64_t s = 0; s < steps; s++, left += STEP, right += STEP) {
        tile_load(4, left, 64);
        tile_load_once(6, right, 64);
        tile_load_once(7, right + STEP / 2, 64);
        tile_load(5, left + STEP / 2, 64);
        tile_add_product(0, 4, 6);
        tile_add_product(1, 4, 7);
        tile_add_product(2, 5, 6);
        tile_add_product(3, 5, 7);
    }
    tile_store(0, total, stride * sizeof(float));
    tile_store(1, total + TILE, stride * sizeof(float));
    tile_store(2, below, stride * sizeof(float));
    tile_store(3, below + TILE, stride * sizeof(float));
}

// Rows of grad and x are `grad_stride` and `x_stride` numbers apart; outs and ins are multiples of 32.
extern "C" void weight_gradient(const bf16 *grad, int64_t grad_stride, const bf16 *x, int64_t x_stride, float *total,
                                int64_t tokens, int64_t outs, int64_t ins, int64_t add) {
    const int64_t blocks = (tokens + BLOCK - 1) / BLOCK, left_panels = outs / PANEL, right_panels = ins / PANEL;
    const int64_t chunk = std::max(int64_t(1), KEPT / (PANEL * ins)), size = BLOCK * PANEL;
    bf16 *right = new (std::align_val_t(64)) bf16[blocks * right_panels * size];
#pragma omp parallel
    {
        const UseTiles use;
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tokens; t += DEPTH)
            arrange(x + t * x_stride, x_stride, tokens - t, right_panels, false,
                    right + t / BLOCK * right_panels * size + t % BLOCK * PANEL, size);
        bf16 *left = new (std::align_val_t(64)) bf16[chunk * size];
        const int64_t part = omp_get_thread_num(), parts = omp_get_num_threads(), end = left_panels * (part + 1) / parts;
        for (int64_t from = left_panels * part / parts; from < end; from += chunk)
            for (int64_t start = 0; start < tokens; start += BLOCK) {
                const int64_t panels = std::min(chunk, end - from), count = std::min(tokens - start, BLOCK);
                for (int64_t t = start; t < start + count; t += DEPTH)
                    arrange(grad + t * grad_stride + from * PANEL, grad_stride, tokens - t, panels, true,
                            left + (t - start) * PANEL, size);
                for (int64_t l = 0; l < panels; l++)
                    for (int64_t r = 0; r < right_panels; r++)
                        multiply(left + l * size, right + (start / BLOCK * right_panels + r) * size,
                                 (count + DEPTH - 1) / DEPTH, add || start > 0,
                                 total + (from + l) * PANEL * ins + r * PANEL, ins);
            }
        ::operator delete[](left, std::align_val_t(64));
    }
    ::operator delete[](right, std::align_val_t(64));
}
