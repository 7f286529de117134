// What forward and backward share: the tensors of a call, the kernel of an output type, the inputs of a window.
#pragma once

#include "common.hpp"

namespace capsroute {
namespace {

// All tensors are contiguous and in the shapes of op.py.
struct Inputs {
  const float *poses, *log_activations, *weight, *offset;
  const int32_t* index;
  const float *lambda1, *lambda2, *beta1, *beta2, *beta3, *heights, *widths;
  int64_t iterations, components, kernels;  // `kernels` is J, or 1 when all output types share theirs
};

struct Outputs {
  float *poses, *logits;
  float* trail;  // [B, P, J, T, D]: mu before each iteration
};

struct Gradients {
  const float *poses, *logits;  // of the outputs
  float *in_poses, *in_log_activations, *weight, *offset;
  float *lambda1, *lambda2, *beta1, *beta2, *beta3, *heights, *widths;
};

// What one output type's parameters give: k(x, x') = sum over q of height[q] 2^(rate[q] ||x - x'||^2), its derivative
// -sum over q of slope[q] 2^(...), and scores in base 2, prior * log a + gain * k, so that exp2 needs no scaling.
struct Kernel {
  int components;
  const float *rate, *height, *slope;
  float gain, prior, bound;  // bound: the largest that gain * k can be
  float cooling, lambda2;    // cooling: 1 / (lambda1 + lambda2)
};

class Kernels {
 public:
  Kernels(const Geometry& g, const Inputs& in) : table_(in.kernels * in.components * 3), kernels_(g.outputs) {
    const int64_t count = in.kernels * in.components;
    float *rate = table_.get(), *height = rate + count, *slope = height + count;
    for (int64_t k = 0; k < count; ++k) {
      const float precision = 0.5f / (in.widths[k] * in.widths[k]);
      rate[k] = -kLog2E * precision;
      height[k] = in.heights[k];
      slope[k] = in.heights[k] * precision;
    }
    for (int64_t j = 0; j < g.outputs; ++j) {
      const int64_t at = (in.kernels == 1 ? 0 : j) * in.components;
      const float cooling = 1.0f / (in.lambda1[j] + in.lambda2[j]), gain = kLog2E * cooling;
      float bound = 0.0f;
      for (int64_t q = 0; q < in.components; ++q) bound += gain * height[at + q];
      kernels_[j] = {static_cast<int>(in.components),
                     rate + at,
                     height + at,
                     slope + at,
                     gain,
                     in.lambda2[j] * gain,
                     bound,
                     cooling,
                     in.lambda2[j]};
    }
  }
  const Kernel& of(int64_t j) const { return kernels_[j]; }

 private:
  Buffer table_;
  std::vector<Kernel> kernels_;
};

// The weights and offsets of all output types, in lane blocks.
struct Matrices {
  Buffer weight_, offset_;
  int64_t size;
  bool has_offset;

  Matrices(const Geometry& g, const Inputs& in)
      : weight_(g.outputs * g.lanes() * g.weight()),
        offset_(in.offset ? g.lanes() * g.out() : 0),
        size(g.lanes() * g.weight()),
        has_offset(in.offset != nullptr) {
    pack(g, in.weight, g.outputs, g.weight(), weight_.get());
    if (has_offset) pack(g, in.offset, 1, g.out(), offset_.get());
  }
  const float* weight(int64_t j) { return weight_.get() + j * size; }
  const float* offset() { return has_offset ? offset_.get() : nullptr; }
};

// The inputs of one window, in lanes.
struct Window {
  float *poses, *log_activations, *mask, *flat;  // flat: the couplings before the first iteration
  int voters = 0;
  float top = 0.0f;  // the largest log activation

  Window(const Geometry& g, Arena& arena)
      : poses(arena.take(g.lanes() * g.in())),
        log_activations(arena.take(g.lanes())),
        mask(arena.take(g.lanes())),
        flat(arena.take(g.lanes())) {}

  void read(const Geometry& g, const Inputs& in, int64_t image, int64_t position) {
    const int32_t* index = in.index + position * g.window;
    voters = window_mask(g, index, mask);
    gather(g, index, in.poses + image * g.inputs * g.in(), static_cast<int>(g.in()), poses);
    gather(g, index, in.log_activations + image * g.inputs, 1, log_activations);
    const float share = 1.0f / std::max(voters, 1);
    Vec highest = splat(-INFINITY);
    for (int i = 0; i < g.lanes(); i += kLanes) {
      const Vec voter = load(mask + i);
      highest = larger(voter > 0.0f ? load(log_activations + i) : highest, highest);
      store(flat + i, voter * share);
    }
    top = largest(highest);
  }
};

// The passes below work on rows of a few hundred numbers that stay in the first-level cache. Each does one thing, so
// that many iterations of its loop are under way at once; doing all at one place would wait for the latency of each.

// The squared distance of every vote from mu.
template <class Shape>
CAPSROUTE_PASS void distances(Shape shape, int blocks, const float* votes, const float* mu, float* out) {
  sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    store(out + b * kLanes, squared_distance<n>(shape.out, votes + b * shape.out * kLanes, mu));
  });
}

// k of a row of distances.
CAPSROUTE_PASS void similarities(Kernel kernel, int blocks, const float* distance, float* out) {
  sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto far = load<n>(distance + b * kLanes);
    auto total = zeros<n>();
    for (int q = 0; q < kernel.components; ++q) total = total + exp2(far * kernel.rate[q]) * kernel.height[q];
    store(out + b * kLanes, total);
  });
}

// The number from which the exponents of a softmax are counted. An upper bound of the scores serves as well as their
// largest value and needs no pass, unless the scores may lie so far below it that all of them vanish.
inline float softmax_shift(int blocks, const Kernel& kernel, const Window& window, const float* similarity) {
  if (kernel.bound < 32.0f) return kernel.prior * window.top + kernel.bound;
  Vec top = splat(-INFINITY);
  for (int b = 0; b < blocks; ++b) {
    const Vec prior = load(window.log_activations + b * kLanes) * kernel.prior;
    const Vec score = load(similarity + b * kLanes) * kernel.gain + prior;
    top = load(window.mask + b * kLanes) > 0.0f ? larger(score, top) : top;
  }
  return largest(top);
}

// Scores, counted from `shift`, and from them couplings, but for the common factor that makes their sum one; returns
// that sum.
CAPSROUTE_PASS float couplings(Kernel kernel, int blocks, const Window& window, const float* similarity, float shift,
                               float* score, float* out) {
  const float *log_activations = window.log_activations, *mask = window.mask;
  Vec total = {};
  sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto prior = load<n>(log_activations + b * kLanes) * kernel.prior - shift;
    const auto x = load<n>(similarity + b * kLanes) * kernel.gain + prior;
    // padding may have overflowed, so its product with zero would not do
    const auto e = where(load<n>(mask + b * kLanes), exp2(x));
    store(score + b * kLanes, x);
    store(out + b * kLanes, e);
    total += e.total();
  });
  return sum(total);
}

struct LogitTerms {
  float agreement, divergence;  // sums of c k and of c (score - log a)
};

inline LogitTerms logit_terms(int blocks, const Window& window, const float* coupling, const float* similarity,
                              const float* score) {
  Vec agreement = {}, divergence = {};
  for (int b = 0; b < blocks; ++b) {
    const Vec c = load(coupling + b * kLanes);
    agreement += c * load(similarity + b * kLanes);
    divergence += c * (load(score + b * kLanes) * kLn2 - load(window.log_activations + b * kLanes));
  }
  return {sum(agreement), sum(divergence)};
}

}  // namespace
}  // namespace capsroute
