// Products of tiles: AMX registers where the processor has them, else AVX-512 vectors that multiply bf16. A tile is 16 rows of
// 64 bytes. Tiles 0 to 3 hold fp32 sums [16][16]; 4 to 7 hold factors, a left one [16][32] or a right one [16 pairs][16][2],
// which must stay as they are in memory until they are used. A function that uses tiles declares `Tiles tiles;`.

#pragma once

#include "numbers.h"

#include <immintrin.h>
#include <new>

constexpr int TILE = 16;   // rows of a tile
constexpr int DEPTH = 32;  // bf16 numbers in a row of a tile

#ifdef __AMX_BF16__

#include <sys/syscall.h>
#include <unistd.h>

struct Tiles {};  // they are in the thread

#define tile_zero(t) _tile_zero(t)
#define tile_load(t, from, stride) _tile_loadd(t, from, stride)
#define tile_load_once(t, from, stride) _tile_stream_loadd(t, from, stride)
#define tile_store(t, to, stride) _tile_stored(t, to, stride)
#define tile_add_product(sum, left, right) _tile_dpbf16ps(sum, left, right)

// Ask the kernel for the tile registers; 0 when they may be used. Threads started afterwards have them too.
extern "C" int request_tiles() {
    constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
    return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) ? -1 : 0;
}

struct alignas(64) TileConfig {
    uint8_t palette = 1, start_row = 0, reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
    TileConfig() {
        for (int i = 0; i < 8; i++) row_bytes[i] = 64, rows[i] = TILE;
    }
};

// A thread's use of the tiles. oneDNN may have left its own configuration in the thread, and rely on it.
class UseTiles {
    TileConfig before;

  public:
    UseTiles() {
        const TileConfig config;
        _tile_storeconfig(&before);
        _tile_loadconfig(&config);
    }
    ~UseTiles() { _tile_loadconfig(&before); }
    UseTiles(const UseTiles &) = delete;
};

#else

#include <utility>

// Plain arrays and pointers, of which the compiler keeps what it can in registers.
struct Tiles {
    __m512 sum[4][TILE];
    const char *at[8];  // factors
    int64_t stride[8];  // of their rows, in bytes

    void zero(int t) {
        for (int i = 0; i < TILE; i++) sum[t][i] = _mm512_setzero_ps();
    }
    void load(int t, const void *from, int64_t bytes) {
        if (t > 3) at[t] = (const char *)from, stride[t] = bytes;
        else for (int i = 0; i < TILE; i++) sum[t][i] = _mm512_loadu_ps((const char *)from + i * bytes);
    }
    void store(int t, void *to, int64_t bytes) const {
        for (int i = 0; i < TILE; i++) _mm512_storeu_ps((char *)to + i * bytes, sum[t][i]);
    }
    void add_product(int s, int left, int right) {
        add_product(sum[s], at[left], stride[left], at[right], stride[right], std::make_index_sequence<TILE>());
    }

  private:
    // Spelled out by index: then the sums stay in registers.
    template <size_t... I>
    static void add_product(__m512 *sum, const char *left, int64_t left_stride, const char *right, int64_t right_stride,
                            std::index_sequence<I...>) {
        __m512 s[] = {sum[I]...};
        for (int p = 0; p < TILE; p++) {
            const __m512bh pairs = (__m512bh)_mm512_loadu_ps(right + p * right_stride);
            ((s[I] = _mm512_dpbf16_ps(s[I], pairs, (__m512bh)_mm512_set1_epi32(((const int *)(left + I * left_stride))[p]))),
             ...);
        }
        ((sum[I] = s[I]), ...);
    }
};

struct UseTiles {
    UseTiles() {}
    ~UseTiles() {}
};

#define tile_zero(t) tiles.zero(t)
#define tile_load(t, from, stride) tiles.load(t, from, stride)
#define tile_load_once(t, from, stride) tiles.load(t, from, stride)
#define tile_store(t, to, stride) tiles.store(t, to, stride)
#define tile_add_product(sum, left, right) tiles.add_product(sum, left, right)

extern "C" int request_tiles() { return 0; }

#endif

// Put number `d` of row `row` where the right factor of a tile product wants it: [rows / 16][k / 2][16][2], so that pairs
// of neighbouring k of 16 rows stand together.
static inline bf16 &arranged(bf16 *tiles, int64_t row, int64_t d, int64_t k) {
    return tiles[(row / TILE * (k / 2) + d / 2) * DEPTH + row % TILE * 2 + d % 2];
}
