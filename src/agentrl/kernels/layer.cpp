// What stands between the matrix products of a Llama-like layer, forward and backward: norms, rotation, gates. All arrays
// are rows one behind the other. Numbers are rounded to bf16 where PyTorch's modules round them; gradients only where
// they are stored.

#include "numbers.h"

#include <algorithm>
#include <vector>

static inline float inverse_norm(const bf16 *x, int64_t size, float eps) {
    float squares = 0.0f;
    for (int64_t d = 0; d < size; d++) squares += widen(x[d]) * widen(x[d]);
    return 1.0f / std::sqrt(squares / size + eps);
}

// y = x / rms(x) · weight for rows of `size` numbers.
extern "C" void norm(const bf16 *x, const bf16 *weight, bf16 *y, int64_t rows, int64_t size, float eps) {
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < rows; i++) {
        const bf16 *from = x + i * size;
        bf16 *to = y + i * size;
        const float factor = inverse_norm(from, size, eps);
        for (int64_t d = 0; d < size; d++) to[d] = narrow(rounded(widen(from[d]) * factor) * widen(weight[d]));
    }
}

// grad_x = the gradient of x from that of y, plus `rest` if there is one; grad_weight[size] is summed in blocks of rows
// and then over the blocks, whoever computes them.
extern "C" void norm_backward(const bf16 *x, const bf16 *weight, const bf16 *grad, const bf16 *rest, bf16 *grad_x,
                              float *grad_weight, int64_t rows, int64_t size, float eps) {
    constexpr int64_t BLOCK = 64;
    const int64_t blocks = (rows + BLOCK - 1) / BLOCK;
    std::vector<float> sums(blocks * size, 0.0f);
#pragma omp parallel
    {
#pragma omp for schedule(static)
        for (int64_t i = 0; i < rows; i++) {
            const bf16 *from = x + i * size, *g = grad + i * size;
            const float factor = inverse_norm(from, size, eps);
            float product = 0.0f;
            for (int64_t d = 0; d < size; d++) product += widen(g[d]) * widen(weight[d]) * widen(from[d]);
            const float along = product * factor * factor * factor / size;
            bf16 *to = grad_x + i * size;
            for (int64_t d = 0; d < size; d++) {
                const float value = widen(g[d]) * widen(weight[d]) * factor - widen(from[d]) * along;
                to[d] = narrow(rest ? value + widen(rest[i * size + d]) : value);
            }
        }
#pragma omp for schedule(static)
        for (int64_t b = 0; b < blocks; b++)
            for (int64_t i = b * BLOCK; i < std::min(rows, (b + 1) * BLOCK); i++) {
                const bf16 *from = x + i * size, *g = grad + i * size;
                const float factor = inverse_norm(from, size, eps);
                for (int64_t d = 0; d < size; d++) sums[b * size + d] += widen(g[d]) * rounded(widen(from[d]) * factor);
            }
    }
    for (int64_t d = 0; d < size; d++) grad_weight[d] = 0.0f;
    for (int64_t b = 0; b < blocks; b++)
        for (int64_t d = 0; d < size; d++) grad_weight[d] += sums[b * size + d];
}

// Rotate the heads of every token in place: x [tokens, heads, size] by cos, sin [tokens, size], whose halves are equal.
// `back` turns the other way, which is the gradient.
extern "C" void rotate(bf16 *x, const bf16 *cos, const bf16 *sin, int64_t tokens, int64_t heads, int64_t size, int64_t back) {
    const float sign = back ? -1.0f : 1.0f;
#pragma omp parallel for schedule(static)
    for (int64_t t = 0; t < tokens; t++) {
        const bf16 *c = cos + t * size, *s = sin + t * size;
        for (int64_t h = 0; h < heads; h++) {
            bf16 *first = x + (t * heads + h) * size, *second = first + size / 2;
#pragma omp simd
            for (int64_t d = 0; d < size / 2; d++) {
                const float a = widen(first[d]), b = widen(second[d]), turn = sign * widen(s[d]);
                first[d] = narrow(rounded(a * widen(c[d])) - rounded(b * turn));
                second[d] = narrow(rounded(b * widen(c[d])) + rounded(a * turn));
            }
        }
    }
}

static inline float sigmoid(float x) {
    const float e = exponential(-std::fabs(x));
    return (x > 0 ? 1.0f : e) / (1.0f + e);
}

// out = silu(gate) · up for n numbers.
extern "C" void gated(const bf16 *gate, const bf16 *up, bf16 *out, int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float g = widen(gate[i]);
        out[i] = narrow(rounded(g * sigmoid(g)) * widen(up[i]));
    }
}

// The gradients of gate and up from that of out, and out once more.
extern "C" void gated_backward(const bf16 *gate, const bf16 *up, const bf16 *grad, bf16 *grad_gate, bf16 *grad_up, bf16 *out,
                               int64_t n) {
#pragma omp parallel for simd schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const float g = widen(gate[i]), u = widen(up[i]), s = sigmoid(g), silu = rounded(g * s), d = widen(grad[i]);
        out[i] = narrow(silu * u);
        grad_up[i] = narrow(d * silu);
        grad_gate[i] = narrow(d * u * s * (1.0f + g * (1.0f - s)));
    }
}
