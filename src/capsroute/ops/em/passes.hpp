// Passes over the votes of one (window, output type) that EM routing needs; README.md derives them.
#pragma once

#include "common.hpp"

namespace capsroute {
namespace {

// What one M-step found: [D] means and [D] variances; centre and squared width of the Gaussian that scores votes, which with
// a prior are `apart` from those; the mass, the sum of the logarithms of the deviations, and what the scores of all votes
// for the capsule have in common.
struct Moments {
  float *mean, *variance, *centre, *width, *mass, *spread, *base;

  Moments(float* at, int64_t size, bool apart)
      : mean(at),
        variance(at + size),
        centre(apart ? variance + size : mean),
        width(apart ? centre + size : variance),
        mass(width + size),
        spread(mass + 1),
        base(spread + 1) {}
  static int64_t floats(int64_t size, bool apart) { return (apart ? 4 : 2) * size + 3; }
};

// out = a * b; returns the sum.
inline float multiply_rows(int lanes, const float* a, const float* b, float* out) {
  Vec all = {};
  for (int i = 0; i < lanes; i += kLanes) {
    const Vec x = load(a + i) * load(b + i);
    store(out + i, x);
    all += x;
  }
  return sum(all);
}

inline float total(int lanes, const float* row) {
  Vec all = {};
  for (int i = 0; i < lanes; i += kLanes) all += load(row + i);
  return sum(all);
}

template <int kCount>
CAPSROUTE_INLINE void sums(const Vec* x, float* out) {
  if constexpr (kCount == 4) {
    sums_of_four(x, out);
  } else {
    for (int k = 0; k < kCount; ++k) out[k] = sum(x[k]);
  }
}

// out[k] = sum over i of weights[i] (rows[i][k] - mean[k])^2
template <int kCount>
CAPSROUTE_INLINE void squares(int size, int blocks, const float* weights, const float* rows, const float* mean, float* out) {
  Vec acc[kCount], centre[kCount];
  for (int k = 0; k < kCount; ++k) acc[k] = Vec{}, centre[k] = splat(mean[k]);
  for (int b = 0; b < blocks; ++b, rows += size * kLanes) {
    const Vec w = load_once(weights + b * kLanes);
    for (int k = 0; k < kCount; ++k) {
      const Vec gap = centre[k] - load(rows + k * kLanes);
      acc[k] += w * gap * gap;
    }
  }
  sums<kCount>(acc, out);
}

CAPSROUTE_INLINE void weighted_squares(int size, int blocks, const float* weights, const float* rows, const float* mean,
                                       float* out) {
  sweep<4>(size, [&](int64_t d, auto n) __attribute__((always_inline)) {
    squares<n>(size, blocks, weights, rows + d * kLanes, mean + d, out + d);
  });
}

// The same with the plain gaps beside their squares: first[k] = sum of weights[i] gap, second[k] = sum of weights[i] gap^2.
template <int kCount>
CAPSROUTE_INLINE void gaps(int size, int blocks, const float* weights, const float* rows, const float* mean, float* first,
                           float* second) {
  Vec plain[kCount], squared[kCount], centre[kCount];
  for (int k = 0; k < kCount; ++k) plain[k] = squared[k] = Vec{}, centre[k] = splat(mean[k]);
  for (int b = 0; b < blocks; ++b, rows += size * kLanes) {
    const Vec w = load_once(weights + b * kLanes);
    for (int k = 0; k < kCount; ++k) {
      const Vec gap = load(rows + k * kLanes) - centre[k], weighted = w * gap;
      plain[k] += weighted;
      squared[k] += weighted * gap;
    }
  }
  sums<kCount>(plain, first);
  sums<kCount>(squared, second);
}

CAPSROUTE_INLINE void weighted_gaps(int size, int blocks, const float* weights, const float* rows, const float* mean,
                                    float* first, float* second) {
  sweep<4>(size, [&](int64_t d, auto n) __attribute__((always_inline)) {
    gaps<n>(size, blocks, weights, rows + d * kLanes, mean + d, first + d, second + d);
  });
}

// term(d, total) over all d, which adds to total; in two sums, since one would wait for itself, and by sixteens, since the
// longer a sum the more it loses.
template <int N, class Term>
CAPSROUTE_INLINE Pack<N> add_up(int size, Term term) {
  Pack<N> total = zeros<N>();
  for (int start = 0; start < size; start += 16) {
    Pack<N> even = zeros<N>(), odd = zeros<N>();
    const int end = start + 16 < size ? start + 16 : size;
    int d = start;
    for (; d + 2 <= end; d += 2) {
      even = term(d, even);
      odd = term(d + 1, odd);
    }
    if (d < end) even = term(d, even);
    total = total + (even + odd);
  }
  return total;
}

// The sum of the logarithms of positive numbers. Eight floats multiplied do not leave the range of a double.
inline double sum_of_logs(int size, const float* x) {
  double total = 0.0;
  for (int d = 0; d < size; d += 8) {
    double product = 1.0;
    for (int k = d; k < std::min(d + 8, size); ++k) product *= x[k];
    total += std::log(product);
  }
  return total;
}

inline float sigmoid(float x) { return x < 0.0f ? std::exp(x) / (1.0f + std::exp(x)) : 1.0f / (1.0f + std::exp(-x)); }
inline double log_sigmoid(double x) { return std::min(x, 0.0) - std::log(1.0 + std::exp(-std::abs(x))); }

// The E-step's scores in base 2, without their base: -sum over d of precision[d] (v - centre)[d]^2.
struct Scores {
  const float* centre;
  alignas(64) float precision[kMaxPose];

  Scores(int size, const Moments& m) : centre(m.centre) {
    for (int d = 0; d < size; ++d) precision[d] = -0.5f * kLog2E / m.width[d];
  }

  template <int N>
  CAPSROUTE_INLINE Pack<N> of(int size, const float* rows) const {
    return add_up<N>(size, [&](int d, const Pack<N>& total) __attribute__((always_inline)) {
      const Pack<N> gap = centre[d] - load<N>(rows + d * kLanes, size);
      return total + gap * gap * precision[d];
    });
  }
};

// The gradients of one M-step's means and variances.
struct MomentGradients {
  float *mean, *variance;

  MomentGradients(float* at, int64_t size) : mean(at), variance(at + size) {}
  static int64_t floats(int64_t size) { return 2 * size; }
};

// What a unit of share of each vote is worth: sum over d of gap (mean gradient + variance gradient * gap).
template <int N>
CAPSROUTE_INLINE Pack<N> worth(int size, const float* rows, const float* mean, const MomentGradients& grad) {
  return add_up<N>(size, [&](int d, const Pack<N>& total) __attribute__((always_inline)) {
    const Pack<N> gap = load<N>(rows + d * kLanes, size) - mean[d];
    return total + gap * (gap * grad.variance[d] + grad.mean[d]);
  });
}

}  // namespace
}  // namespace capsroute
