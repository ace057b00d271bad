// bf16 numbers and the exponential, in plain operations that the compiler makes vectors of.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

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

// e^x for x <= 0, within a few units in the last place: 2^whole by the exponent's bits, e^part by its series.
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
