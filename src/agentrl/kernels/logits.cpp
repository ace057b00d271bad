// Log-probabilities and entropies of tokens under a softmax over the vocabulary, and their gradient: one or two passes
// over the logits, and no other array of their size.

#include "numbers.h"

// logits [n, size] / temperature → logp[n] of target[n], entropy[n], and log_sum[n] for the gradient.
extern "C" void token_logprobs(const bf16 *logits, const int64_t *target, int64_t n, int64_t size, float temperature,
                               float *logp, float *entropy, float *log_sum) {
    const float scale = 1.0f / temperature;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        const bf16 *row = logits + i * size;
        float top = widen(row[0]);
        for (int64_t d = 0; d < size; d++) top = widen(row[d]) > top ? widen(row[d]) : top;
        // Sums by lanes and in double over blocks: 50,000 terms added one by one would lose three digits.
        double mass = 0.0, weighted = 0.0;
        for (int64_t start = 0; start < size; start += 1024) {
            const int64_t end = start + 1024 < size ? start + 1024 : size;
            float part = 0.0f, product = 0.0f;
            for (int64_t d = start; d < end; d++) {
                const float x = (widen(row[d]) - top) * scale, p = exponential(x);
                part += p;
                product += p * x;
            }
            mass += part;
            weighted += product;
        }
        log_sum[i] = top * scale + (float)std::log(mass);
        logp[i] = (widen(row[target[i]]) - top) * scale - (float)std::log(mass);
        entropy[i] = (float)(std::log(mass) - weighted / mass);
    }
}

// The gradient of sum(grad · logp) with respect to the logits, written over them.
extern "C" void token_logprobs_backward(bf16 *logits, const int64_t *target, const float *log_sum, const float *grad,
                                        int64_t n, int64_t size, float temperature) {
    const float scale = 1.0f / temperature;
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < n; i++) {
        bf16 *row = logits + i * size;
        const float factor = -grad[i] * scale, sum = log_sum[i];
        const float chosen = factor * (std::exp(widen(row[target[i]]) * scale - sum) - 1.0f);
        for (int64_t d = 0; d < size; d++) row[d] = narrow(factor * exponential(widen(row[d]) * scale - sum));
        row[target[i]] = narrow(chosen);
    }
}
