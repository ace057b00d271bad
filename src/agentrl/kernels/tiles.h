// What the kernels share: bf16 numbers, the exponential, and AMX tiles.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <new>

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef uint16_t bf16;

static inline float widen(bf16 x) {
    return __builtin_bit_cast(float, (uint32_t)x << 16);
}

static inline bf16 narrow(float x) {  // to the nearest, ties to even
    const uint32_t bits = __builtin_bit_cast(uint32_t, x);
    return (bf16)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

static inline float rounded(float x) { return widen(narrow(x)); }

constexpr float NONE = -88.0f;  // its exponential is 0

// e^x for x <= 0, within a few units in the last place: 2^whole by the exponent's bits, e^part by its series. In plain
// operations, so that the compiler makes vectors of it.
static inline float exponential(float x) {
    x = x < NONE ? NONE : x;
    const int32_t whole = (int32_t)(x * 1.44269504f - 0.5f);
    const float part = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;  // ln 2 in two parts
    float value = 1.0f / 5040;
    value = value * part + 1.0f / 720;
    value = value * part + 1.0f / 120;
    value = value * part + 1.0f / 24;
    value = value * part + 1.0f / 6;
    value = value * part + 0.5f;
    value = value * part + 1.0f;
    value = value * part + 1.0f;
    return value * __builtin_bit_cast(float, (whole + 127) << 23);
}

constexpr int TILE = 16;   // rows of a tile
constexpr int DEPTH = 32;  // bf16 numbers in a row of a tile

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

// Put number `d` of row `row` where the right factor of a tile product wants it: [rows / 16][k / 2][16][2], so that pairs
// of neighbouring k of 16 rows stand together.
static inline bf16 &arranged(bf16 *tiles, int64_t row, int64_t d, int64_t k) {
    return tiles[(row / TILE * (k / 2) + d / 2) * DEPTH + row % TILE * 2 + d % 2];
}
