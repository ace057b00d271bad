// AMX tiles: the registers, and how a right factor is laid out for them.

#pragma once

#include "numbers.h"

#include <immintrin.h>
#include <new>
#include <sys/syscall.h>
#include <unistd.h>

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
