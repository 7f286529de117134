// Passes over the votes of one (window, output type) that EM routing needs; README.md derives them.
#pragma once

#include "common.hpp"

namespace capsroute {

// What one M-step found: [D] means, [D] variances, the mass, and the sum of the logarithms of the deviations.
struct Moments {
  float *mean, *variance, *mass, *spread;

  Moments(float* at, int64_t size) : mean(at), variance(at + size), mass(at + 2 * size), spread(at + 2 * size + 1) {}
  static int64_t floats(int64_t size) { return 2 * size + 2; }
};

// out[k] = sum over i of weights[i] (rows[i][k] - mean[k])^2
template <int kCount>
CAPSROUTE_INLINE void squares(int size, int blocks, const float* weights, const float* rows, const float* mean, float* out) {
  Vec acc[kCount], centre[kCount];
  for (int k = 0; k < kCount; ++k) acc[k] = Vec{}, centre[k] = splat(mean[k]);
  for (int b = 0; b < blocks; ++b) {
    const Vec w = load(weights + b * kLanes);
    for (int k = 0; k < kCount; ++k) {
      const Vec gap = load(rows + (b * size + k) * kLanes) - centre[k];
      acc[k] += w * gap * gap;
    }
  }
  for (int k = 0; k < kCount; ++k) out[k] = sum(acc[k]);
}

CAPSROUTE_INLINE void weighted_squares(int size, int blocks, const float* weights, const float* rows, const float* mean,
                                       float* out) {
  sweep<4>(size, [&](int d, auto n) __attribute__((always_inline)) {
    squares<n>(size, blocks, weights, rows + d * kLanes, mean + d, out + d);
  });
}

// The same with the plain gaps beside their squares: first[k] = sum of weights[i] gap, second[k] = sum of weights[i] gap^2.
template <int kCount>
CAPSROUTE_INLINE void gaps(int size, int blocks, const float* weights, const float* rows, const float* mean, float* first,
                           float* second) {
  Vec plain[kCount], squared[kCount], centre[kCount];
  for (int k = 0; k < kCount; ++k) plain[k] = squared[k] = Vec{}, centre[k] = splat(mean[k]);
  for (int b = 0; b < blocks; ++b) {
    const Vec w = load(weights + b * kLanes);
    for (int k = 0; k < kCount; ++k) {
      const Vec gap = load(rows + (b * size + k) * kLanes) - centre[k], weighted = w * gap;
      plain[k] += weighted;
      squared[k] += weighted * gap;
    }
  }
  for (int k = 0; k < kCount; ++k) first[k] = sum(plain[k]), second[k] = sum(squared[k]);
}

CAPSROUTE_INLINE void weighted_gaps(int size, int blocks, const float* weights, const float* rows, const float* mean,
                                    float* first, float* second) {
  sweep<4>(size, [&](int d, auto n) __attribute__((always_inline)) {
    gaps<n>(size, blocks, weights, rows + d * kLanes, mean + d, first + d, second + d);
  });
}

// The sum of the logarithms of positive numbers. Products of four cannot leave the range of a double.
inline float sum_of_logs(int size, const float* x) {
  double total = 0.0;
  int d = 0;
  for (; d + 4 <= size; d += 4)
    total += std::log(static_cast<double>(x[d]) * x[d + 1] * (static_cast<double>(x[d + 2]) * x[d + 3]));
  for (; d < size; ++d) total += std::log(static_cast<double>(x[d]));
  return static_cast<float>(total);
}

inline float sigmoid(float x) { return x < 0.0f ? std::exp(x) / (1.0f + std::exp(x)) : 1.0f / (1.0f + std::exp(-x)); }
inline float log_sigmoid(float x) { return std::min(x, 0.0f) - std::log1p(std::exp(-std::abs(x))); }

// The E-step's scores in base 2, less what all parents have in common: base - sum over d of precision[d] (v - mean)[d]^2.
struct Scores {
  float base;
  alignas(64) float precision[kMaxPose];

  Scores(int size, const Moments& m, float logit) {
    base = kLog2E * (log_sigmoid(logit) - *m.spread);
    for (int d = 0; d < size; ++d) precision[d] = 0.5f * kLog2E / m.variance[d];
  }

  template <int N>
  CAPSROUTE_INLINE Pack<N> of(int size, const float* rows, const float* mean) const {
    Pack<N> total = zeros<N>();
    for (int d = 0; d < size; ++d) {
      const Pack<N> gap = load<N>(rows + d * kLanes, size) - mean[d];
      total = total + gap * gap * precision[d];
    }
    Pack<N> score;
    for (int k = 0; k < N; ++k) score[k] = base - total[k];
    return score;
  }
};

// The gradients of one M-step's means and variances, and its precisions for the votes' gradients.
struct MomentGradients {
  float *mean, *variance, *precision;

  MomentGradients(float* at, int64_t size) : mean(at), variance(at + size), precision(at + 2 * size) {}
  static int64_t floats(int64_t size) { return 3 * size; }
};

// What a unit of share of each vote is worth: sum over d of gap (mean gradient + variance gradient * gap).
template <int N>
CAPSROUTE_INLINE Pack<N> worth(int size, const float* rows, const float* mean, const MomentGradients& grad) {
  Pack<N> total = zeros<N>();
  for (int d = 0; d < size; ++d) {
    const Pack<N> gap = load<N>(rows + d * kLanes, size) - mean[d];
    Pack<N> slope = gap * grad.variance[d];
    for (int k = 0; k < N; ++k) slope[k] += grad.mean[d];
    total = total + gap * slope;
  }
  return total;
}

}  // namespace capsroute
