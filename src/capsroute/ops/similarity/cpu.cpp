// Similarity routing with a Gaussian mixture kernel, forward and backward, without ever storing a vote.
//
// One (window, output type) at a time: its votes are computed into a buffer that fits the first-level cache, routed, reduced
// and dropped. Scores are kept in base 2, so that exp2 needs no scaling. README.md derives what is computed here.
#include "common.hpp"

namespace capsroute {
namespace {

// One call's tensors; all contiguous, in the shapes of op.py.
struct Inputs {
  const float *poses, *log_activations, *weight, *offset;
  const int32_t* index;
  const float *lambda1, *lambda2, *beta1, *beta2, *beta3, *heights, *widths;
  int64_t iterations, components, kernels;  // `kernels` is J, or 1 when all output types share theirs
};

struct Outputs {
  float *poses, *logits;
  float* trail;  // [B, P, J, T, D + 2]: mu before each iteration, then the shift and the inverse sum of its softmax
};

struct Gradients {
  const float *poses, *logits;  // of the outputs
  float *in_poses, *in_log_activations, *weight, *offset;
  float *lambda1, *lambda2, *beta1, *beta2, *beta3, *heights, *widths;
};

// What one output type's parameters give: k(x, x') = sum over q of height[q] 2^(rate[q] ||x - x'||^2),
// a score in base 2 of prior * log a + gain * k, and -dk/d||x - x'||^2 = sum over q of slope[q] 2^(...).
struct Kernel {
  int components;
  const float *rate, *height, *slope;
  float gain, prior, bound;  // bound: the largest gain * k can be
};

class Kernels {
 public:
  Kernels(const Geometry& g, const Inputs& in) : in_(in), table_(in.kernels * in.components * 3) {
    for (int64_t k = 0; k < in.kernels * in.components; ++k) {
      const float precision = 0.5f / (in.widths[k] * in.widths[k]);
      at(0)[k] = -kLog2E * precision;
      at(1)[k] = in.heights[k];
      at(2)[k] = in.heights[k] * precision;
    }
    (void)g;
  }

  Kernel of(int64_t j) {
    const int64_t start = (in_.kernels == 1 ? 0 : j) * in_.components;
    Kernel k{static_cast<int>(in_.components), at(0) + start, at(1) + start, at(2) + start, 0.0f, 0.0f, 0.0f};
    k.gain = kLog2E / (in_.lambda1[j] + in_.lambda2[j]);
    k.prior = in_.lambda2[j] * k.gain;
    for (int q = 0; q < k.components; ++q) k.bound += k.gain * k.height[q];
    return k;
  }

 private:
  float* at(int row) { return table_.get() + row * in_.kernels * in_.components; }
  const Inputs& in_;
  Buffer table_;
};

template <int N>
CAPSROUTE_INLINE Pack<N> similarity(const Kernel& kernel, const Pack<N>& distance) {
  Pack<N> total = zeros<N>();
  for (int q = 0; q < kernel.components; ++q) total = total + exp2(distance * kernel.rate[q]) * kernel.height[q];
  return total;
}

template <class Shape>
__attribute__((noinline)) void distances(Shape shape, int blocks, const float* votes, const float* mu, float* out) {
  sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    store(out + b * kLanes, squared_distance<n>(shape.out, votes + b * shape.out * kLanes, mu));
  });
}

// The inputs of one window, in lanes.
struct Window {
  float *poses, *log_activations, *mask, *flat;  // flat: the coupling before the first iteration
  int voters = 0;
  float top = 0.0f;  // the largest log activation

  Window(const Geometry& g, Arena& arena)
      : poses(arena.take(g.lanes() * g.in())),
        log_activations(arena.take(g.lanes())),
        mask(arena.take(g.lanes())),
        flat(arena.take(g.lanes())) {}
  static int64_t floats(const Geometry& g) { return Arena::rounded(g.lanes() * g.in()) + 3 * Arena::rounded(g.lanes()); }

  void read(const Geometry& g, const Inputs& in, int64_t image, int64_t position) {
    const int32_t* index = in.index + position * g.window;
    voters = window_mask(g, index, mask);
    gather(g, index, in.poses + image * g.inputs * g.in(), static_cast<int>(g.in()), poses);
    gather(g, index, in.log_activations + image * g.inputs, 1, log_activations);
    top = -INFINITY;
    for (int i = 0; i < g.lanes(); ++i) {
      flat[i] = mask[i] / std::max(voters, 1);
      if (mask[i] > 0.0f) top = std::max(top, log_activations[i]);
    }
  }
};

// The number from which the exponents of a softmax are counted. An upper bound of the scores serves as well as their
// largest value and needs no pass, unless the scores may lie so far below it that all of them vanish.
template <class Shape>
float softmax_shift(Shape shape, int blocks, Kernel kernel, Window window, const float* votes, const float* mu) {
  if (kernel.bound < 32.0f) return kernel.prior * window.top + kernel.bound;
  Vec top = splat(-INFINITY);
  for (int b = 0; b < blocks; ++b) {
    const Pack<1> k = similarity(kernel, squared_distance<1>(shape.out, votes + b * shape.out * kLanes, mu));
    const Vec score = load(window.log_activations + b * kLanes) * kernel.prior + k[0] * kernel.gain;
    top = load(window.mask + b * kLanes) > 0.0f ? larger(score, top) : top;
  }
  return largest(top);
}

template <class Shape>
void forward_output(Shape shape, const Geometry& g, const Inputs& in, Kernel kernel, int64_t j, Window window,
                    const float* votes, float* distance, float* score, float* coupling, float* mu, float* logit, float* trail) {
  const int blocks = g.blocks();
  float inverse = 1.0f / window.voters;
  if (in.iterations == 0) {
    std::copy_n(window.mask, g.lanes(), coupling);
    std::fill_n(score, g.lanes(), 0.0f);
  }
  weighted_sum(shape.out, blocks, window.flat, votes, mu);
  for (int64_t t = 0; t < in.iterations; ++t, trail += shape.out + 2) {
    const float shift = softmax_shift(shape, blocks, kernel, window, votes, mu);
    Vec total = {};
    distances(shape, blocks, votes, mu, distance);
    sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
      const auto k = similarity(kernel, load<n>(distance + b * kLanes));
      store(score + b * kLanes, load<n>(window.log_activations + b * kLanes) * kernel.prior + k * kernel.gain - shift);
    });
    sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
      const auto e = exp2(load<n>(score + b * kLanes)) * load<n>(window.mask + b * kLanes);
      store(coupling + b * kLanes, e);
      total += e.total();
    });
    inverse = 1.0f / sum(total);
    std::copy_n(mu, shape.out, trail);
    trail[shape.out] = shift;
    trail[shape.out + 1] = inverse;
    weighted_sum(shape.out, blocks, coupling, votes, mu);
    for (int d = 0; d < shape.out; ++d) mu[d] *= inverse;
  }
  Vec agreement = {}, divergence = {};
  distances(shape, blocks, votes, mu, distance);
  sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto k = similarity(kernel, load<n>(distance + b * kLanes));
    const auto e = load<n>(coupling + b * kLanes);
    agreement += (e * k).total();
    divergence += (e * (load<n>(score + b * kLanes) * kLn2 - load<n>(window.log_activations + b * kLanes))).total();
  });
  const float kl = sum(divergence) * inverse + std::log(inverse);
  *logit = in.beta1[j] * (sum(agreement) * inverse) - in.beta2[j] * kl + in.beta3[j];
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  const int64_t weight_size = g.lanes() * g.weight(), votes_size = g.lanes() * g.out();
  Buffer weight(g.outputs * weight_size), offset(in.offset ? votes_size : 0);
  pack(g, in.weight, g.outputs, g.weight(), weight.get());
  if (in.offset) pack(g, in.offset, 1, g.out(), offset.get());
  Kernels kernels(g, in);
  const int64_t trail_size = in.iterations * (g.out() + 2);
  parallel(g.threads, g.batch * g.positions, [&](int64_t, int64_t begin, int64_t end) {
    Arena arena(Window::floats(g) + Arena::rounded(votes_size) + 3 * Arena::rounded(g.lanes()) + kMaxPose);
    Window window(g, arena);
    float* v = arena.take(votes_size);
    float* distance = arena.take(g.lanes());
    float* score = arena.take(g.lanes());
    float* coupling = arena.take(g.lanes());
    float* mu = arena.take(kMaxPose);
    for (int64_t at = begin; at < end; ++at) {
      window.read(g, in, at / g.positions, at % g.positions);
      for (int64_t j = 0; j < g.outputs; ++j) {
        const int64_t o = at * g.outputs + j;
        if (window.voters == 0) {
          std::fill_n(out.poses + o * g.out(), g.out(), 0.0f);
          std::fill_n(out.trail + o * trail_size, trail_size, 0.0f);
          out.logits[o] = in.beta3[j];
          continue;
        }
        votes(shape, g.blocks(), weight.get() + j * weight_size, window.poses, in.offset ? offset.get() : nullptr, v);
        forward_output(shape, g, in, kernels.of(j), j, window, v, distance, score, coupling, mu, out.logits + o,
                       out.trail + o * trail_size);
        std::copy_n(mu, g.out(), out.poses + o * g.out());
      }
    }
  });
}

// What a thread sums over its images for one output type; doubles, since these sums run over all votes.
struct ParameterSums {
  double lambda1 = 0, lambda2 = 0, beta1 = 0, beta2 = 0, beta3 = 0;
};

// Everything that the backward pass of one (window, output type) keeps, t = 0 ... T, in rows of lanes.
struct Workspace {
  int64_t lanes, components, size;
  float *votes, *grad_votes;
  float *coupling, *distance, *similarity, *slope, *grad, *pull;  // [T + 1][lanes]; pull: the gradient towards mu
  float* parts;                                                   // [T + 1][Q][lanes]: the exponentials
  float *score, *pull_total, *grad_coupling;                      // [lanes]
  float *grad_mu, *flat_grad;                                     // [T + 1][D]; that of mu_0 for each voter [D]
  const float** mu;                                               // [T + 1]

  Workspace(const Geometry& g, const Inputs& in, Arena& arena, const float** mu)
      : lanes(g.lanes()), components(in.components), size(g.out()), mu(mu) {
    const int64_t rows = (in.iterations + 1) * lanes;
    votes = arena.take(lanes * size);
    grad_votes = arena.take(2 * kLanes * size);
    for (float** row : {&coupling, &distance, &similarity, &slope, &grad, &pull}) *row = arena.take(rows);
    parts = arena.take(rows * components);
    score = arena.take(lanes);
    pull_total = arena.take(lanes);
    grad_coupling = arena.take(lanes);
    grad_mu = arena.take((in.iterations + 1) * size);
    flat_grad = arena.take(size);
  }
  static int64_t floats(const Geometry& g, const Inputs& in) {
    const int64_t rows = (in.iterations + 1) * g.lanes();
    return Arena::rounded(g.lanes() * g.out()) + Arena::rounded(2 * kLanes * g.out()) + 6 * Arena::rounded(rows) +
           Arena::rounded(rows * in.components) + 3 * Arena::rounded(g.lanes()) +
           Arena::rounded((in.iterations + 1) * g.out()) + Arena::rounded(g.out());
  }
};

struct LogitTerms {
  float agreement, kl;
};

// k and its slope for a row of distances, and the exponentials they are made of.
__attribute__((noinline)) void kernel_values(Kernel kernel, int blocks, int lanes, const float* distance, float* parts, float* similarity,
                   float* slope) {
  sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto far = load<n>(distance + b * kLanes);
    auto k = zeros<n>(), falling = zeros<n>();
    for (int q = 0; q < kernel.components; ++q) {
      const auto e = exp2(far * kernel.rate[q]);
      store(parts + q * lanes + b * kLanes, e);
      k = k + e * kernel.height[q];
      falling = falling + e * kernel.slope[q];
    }
    store(similarity + b * kLanes, k);
    store(slope + b * kLanes, falling);
  });
}

// Recomputes, from the means that forward kept, every kernel value and coupling of all iterations in one pass.
template <class Shape>
LogitTerms recompute(Shape shape, const Geometry& g, const Inputs& in, Kernel kernel, Window window,
                     const float* trail, Workspace w) {
  const int iterations = static_cast<int>(in.iterations), lanes = g.lanes();
  if (iterations == 0) {
    std::copy_n(window.flat, lanes, w.coupling);
    std::fill_n(w.score, lanes, 0.0f);
  }
  for (int t = 0; t <= iterations; ++t) {
    const int row = t * lanes;
    distances(shape, g.blocks(), w.votes, w.mu[t], w.distance + row);
    kernel_values(kernel, g.blocks(), lanes, w.distance + row, w.parts + row * kernel.components, w.similarity + row,
                  w.slope + row);
    if (t == iterations) break;
    const float* kept = trail + t * (shape.out + 2) + shape.out;
    sweep<3>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
      const int at = b * kLanes;
      const auto x = load<n>(window.log_activations + at) * kernel.prior + load<n>(w.similarity + row + at) * kernel.gain - kept[0];
      store(w.score + at, x);
      store(w.coupling + row + lanes + at, exp2(x) * load<n>(window.mask + at) * kept[1]);
    });
  }
  Vec agreement = {}, divergence = {};
  for (int i = 0; i < lanes; i += kLanes) {
    const Vec c = load(w.coupling + iterations * lanes + i);
    agreement += c * load(w.similarity + iterations * lanes + i);
    divergence += c * (load(w.score + i) * kLn2 - load(window.log_activations + i));
  }
  const float inverse = iterations ? trail[iterations * (shape.out + 2) - 1] : 1.0f / window.voters;
  return {sum(agreement), sum(divergence) + std::log(inverse)};
}

// From the gradients of k(mu_t, v_i) to that of mu_t through the distances: sum of pull_i (v_i - mu), added to `start`.
template <class Shape>
void pull_mean(Shape shape, int blocks, Workspace w, int64_t t, float total, const float* start, float* grad_mu) {
  weighted_sum(shape.out, blocks, w.pull + t * w.lanes, w.votes, grad_mu);
  for (int d = 0; d < shape.out; ++d) grad_mu[d] += (start ? start[d] : 0.0f) - total * w.mu[t][d];
}

template <class Shape>
void logit_backward(Shape shape, const Geometry& g, float grad_agreement, const float* grad_pose, int64_t t, Workspace w) {
  Vec total = {};
  sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const int at = t * w.lanes + b * kLanes;
    const auto grad = load<n>(w.coupling + at) * grad_agreement;
    const auto pull = grad * load<n>(w.slope + at) * 2.0f;
    store(w.grad + at, grad);
    store(w.pull + at, pull);
    store(w.pull_total + b * kLanes, pull);
    total += pull.total();
  });
  pull_mean(shape, g.blocks(), w, t, sum(total), grad_pose, w.grad_mu + t * shape.out);
}

// One iteration backwards: from the gradients of mu_t to those of mu_(t-1), through couplings, scores and kernel.
template <class Shape>
void iteration_backward(Shape shape, const Geometry& g, const Inputs& in, int64_t j, Window window, float grad_logit,
                        int64_t t, Workspace w, float* grad_log_a, ParameterSums& sums) {
  const float* grad_mu = w.grad_mu + t * shape.out;
  const float temperature = 1.0f / (in.lambda1[j] + in.lambda2[j]), lambda2 = in.lambda2[j];
  // Only the last couplings enter the logit; for the others these factors are zero.
  const bool last = t == in.iterations;
  const float to_k = last ? grad_logit * in.beta1[j] : 0.0f, to_kl = last ? grad_logit * in.beta2[j] : 0.0f;
  // Two passes: the mean must be that of these very numbers, or its rounding would not cancel in the sums below.
  Vec mean = {};
  sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const int now = t * w.lanes + b * kLanes;
    auto grad_c = dot<n>(shape.out, w.votes + b * shape.out * kLanes, grad_mu);
    if (last) {
      const auto log_ratio = load<n>(w.score + b * kLanes) * kLn2 - load<n>(window.log_activations + b * kLanes);
      grad_c = grad_c + load<n>(w.similarity + now) * to_k - log_ratio * to_kl;
    }
    const auto weighted = load<n>(w.coupling + now) * grad_c;
    store(w.grad_coupling + b * kLanes, weighted);
    mean += weighted.total();
  });
  const float centre = sum(mean);
  Vec total = {}, by_score = {}, by_log_a = {};
  sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const int now = t * w.lanes + b * kLanes, before = now - w.lanes;
    const auto log_a = load<n>(window.log_activations + b * kLanes);
    const auto c = load<n>(w.coupling + now);
    const auto grad_score = load<n>(w.grad_coupling + b * kLanes) - c * centre;
    const auto grad = grad_score * temperature;
    const auto pull = grad * load<n>(w.slope + before) * 2.0f;
    const auto score = (log_a * lambda2 + load<n>(w.similarity + before)) * temperature;
    by_score += (grad_score * score).total();
    by_log_a += (grad_score * log_a).total();
    total += pull.total();
    store(w.grad + before, grad);
    store(w.pull + before, pull);
    store(w.pull_total + b * kLanes, load<n>(w.pull_total + b * kLanes) + pull);
    store(grad_log_a + b * kLanes, load<n>(grad_log_a + b * kLanes) + grad * lambda2 + c * to_kl);
  });
  sums.lambda1 -= sum(by_score) * temperature;
  sums.lambda2 += (sum(by_log_a) - sum(by_score)) * temperature;
  pull_mean(shape, g.blocks(), w, t - 1, sum(total), nullptr, w.grad_mu + (t - 1) * shape.out);
}

// heights[q] += sum of grad e_q and precisions[q] += sum of grad distance e_q, over inputs and iterations.
template <int kCount>
void kernel_backward(const Geometry& g, const Inputs& in, Workspace w, int64_t q, double* heights, double* precisions) {
  Vec plain[kCount], scaled[kCount];
  for (int k = 0; k < kCount; ++k) plain[k] = scaled[k] = Vec{};
  for (int64_t t = 0; t <= in.iterations; ++t)
    for (int b = 0; b < g.blocks(); ++b) {
      const int64_t at = t * w.lanes + b * kLanes;
      const Vec grad = load(w.grad + at), far = grad * load(w.distance + at);
      for (int k = 0; k < kCount; ++k) {
        const Vec e = load_once(w.parts + (t * w.components + q + k) * w.lanes + b * kLanes);
        plain[k] += grad * e;
        scaled[k] += far * e;
      }
    }
  for (int k = 0; k < kCount; ++k) {
    heights[q + k] += sum(plain[k]);
    precisions[q + k] += sum(scaled[k]);
  }
}

// dv_i[d] of N blocks for kCount numbers of the vote: what pulls it towards the means, and what the couplings pass on.
// Padding gets numbers too: its poses are zero, so they reach no weight, and nobody reads the gradient of its pose.
template <int N, int kCount>
CAPSROUTE_INLINE void vote_gradient(int iterations, Workspace w, int size, int b, int d) {
  Pack<N> acc[kCount];
  const float *votes = w.votes + (b * size + d) * kLanes, *coupling = w.coupling + b * kLanes, *pull = w.pull + b * kLanes;
  const Pack<N> all = load_once<N>(w.pull_total + b * kLanes);
  for (int k = 0; k < kCount; ++k) acc[k] = w.flat_grad[d + k] - all * load<N>(votes + k * kLanes, size);
  for (int t = 0;; ++t) {
    const Pack<N> p = load_once<N>(pull + t * w.lanes);
    const float* mu = w.mu[t] + d;
    for (int k = 0; k < kCount; ++k) acc[k] = acc[k] + p * mu[k];
    if (t == iterations) break;
    const Pack<N> c = load_once<N>(coupling + (t + 1) * w.lanes);
    const float* grad_mu = w.grad_mu + (t + 1) * size + d;
    for (int k = 0; k < kCount; ++k) acc[k] = acc[k] + c * grad_mu[k];
  }
  for (int k = 0; k < kCount; ++k) store(w.grad_votes + (d + k) * kLanes, acc[k], size);
}

template <class Shape>
void backward_votes(Shape shape, const Geometry& g, const Inputs& in, Window window, Workspace w, const float* weight,
                    float* grad_weight, float* grad_window, float* grad_offset) {
  const int iterations = static_cast<int>(in.iterations);
  for (int d = 0; d < shape.out; ++d) w.flat_grad[d] = w.grad_mu[d] / window.voters;
  sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    int d = 0;
    for (; d + 4 <= shape.out; d += 4) vote_gradient<n, 4>(iterations, w, shape.out, b, d);
    for (; d < shape.out; ++d) vote_gradient<n, 1>(iterations, w, shape.out, b, d);
    if (grad_offset) {
      for (int k = 0; k < n; ++k)
        for (int r = 0; r < shape.out; ++r) {
          float *to = grad_offset + ((b + k) * shape.out + r) * kLanes, *from = w.grad_votes + (k * shape.out + r) * kLanes;
          store(to, load(to) + load(from) * load(window.mask + (b + k) * kLanes));
        }
    }
    votes_backward(shape, n, weight + b * shape.weight * kLanes, window.poses + b * shape.in * kLanes, w.grad_votes,
                   grad_weight + b * shape.weight * kLanes, grad_window + b * shape.in * kLanes, nullptr);
  });
}

// The sums of one thread: packed weight and offset gradients, and those of the parameters.
struct ThreadSums {
  float *weight, *offset;
  ParameterSums* parameters;       // [J]
  double *heights, *precisions;    // [J][Q]
};

template <class Shape>
void backward_output(Shape shape, const Geometry& g, const Inputs& in, Kernel kernel, int64_t j, Window window,
                     const float* weight, const float* offset, const float* trail, const float* mu, const float* grad_pose,
                     float grad_logit, Workspace w, float* grad_window, float* grad_log_a, ThreadSums& sums) {
  const int64_t last = in.iterations, row = g.lanes();
  for (int64_t t = 0; t < last; ++t) w.mu[t] = trail + t * (shape.out + 2);
  w.mu[last] = mu;
  votes(shape, g.blocks(), weight, window.poses, offset, w.votes);
  const LogitTerms terms = recompute(shape, g, in, kernel, window, trail, w);
  ParameterSums& own = sums.parameters[j];
  own.beta1 += static_cast<double>(grad_logit) * terms.agreement;
  own.beta2 -= static_cast<double>(grad_logit) * terms.kl;
  own.beta3 += grad_logit;
  logit_backward(shape, g, grad_logit * in.beta1[j], grad_pose, last, w);
  if (last == 0)  // the flat coupling depends on nothing, so log a enters through the divergence alone
    for (int64_t i = 0; i < row; ++i) grad_log_a[i] += grad_logit * in.beta2[j] * window.flat[i];
  for (int64_t t = last; t > 0; --t)
    iteration_backward(shape, g, in, j, window, grad_logit, t, w, grad_log_a, own);
  double* heights = sums.heights + j * in.components;
  double* precisions = sums.precisions + j * in.components;
  int64_t q = 0;
  for (; q + 4 <= in.components; q += 4) kernel_backward<4>(g, in, w, q, heights, precisions);
  for (; q < in.components; ++q) kernel_backward<1>(g, in, w, q, heights, precisions);
  backward_votes(shape, g, in, window, w, weight, sums.weight + j * row * shape.weight, grad_window, sums.offset);
}

// Sums the threads' shares in their order and undoes the substitutions of Kernels.
void write_parameters(const Geometry& g, const Inputs& in, const Gradients& grad, int64_t parts, const ParameterSums* parameters,
                      const double* kernels) {
  std::fill_n(grad.heights, in.kernels * in.components, 0.0f);
  std::fill_n(grad.widths, in.kernels * in.components, 0.0f);
  for (int64_t j = 0; j < g.outputs; ++j) {
    ParameterSums all;
    for (int64_t part = 0; part < parts; ++part) {
      const ParameterSums& share = parameters[part * g.outputs + j];
      all.lambda1 += share.lambda1;
      all.lambda2 += share.lambda2;
      all.beta1 += share.beta1;
      all.beta2 += share.beta2;
      all.beta3 += share.beta3;
    }
    grad.lambda1[j] = static_cast<float>(all.lambda1);
    grad.lambda2[j] = static_cast<float>(all.lambda2);
    grad.beta1[j] = static_cast<float>(all.beta1);
    grad.beta2[j] = static_cast<float>(all.beta2);
    grad.beta3[j] = static_cast<float>(all.beta3);
  }
  const int64_t count = g.outputs * in.components;
  for (int64_t k = 0; k < in.kernels * in.components; ++k) {
    double height = 0, precision = 0;
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t at = k; at < count; at += in.kernels * in.components) {
        height += kernels[part * 2 * count + at];
        precision += kernels[(part * 2 + 1) * count + at];
      }
    const double width = in.widths[k];
    grad.heights[k] = static_cast<float>(height);
    grad.widths[k] = static_cast<float>(precision * in.heights[k] / (width * width * width));
  }
}

template <class Shape>
void backward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grad) {
  const int64_t lanes = g.lanes(), weight_size = lanes * g.weight(), offset_size = in.offset ? lanes * g.out() : 0;
  Buffer weight(g.outputs * weight_size), offset(offset_size);
  pack(g, in.weight, g.outputs, g.weight(), weight.get());
  if (in.offset) pack(g, in.offset, 1, g.out(), offset.get());
  Kernels kernels(g, in);
  const int64_t trail_size = in.iterations * (g.out() + 2);
  const int64_t parts = std::max<int64_t>(1, std::min(g.threads, g.batch)), kernel_size = g.outputs * in.components;
  Buffer grad_weight(parts * g.outputs * weight_size), grad_offset(parts * offset_size);
  std::vector<ParameterSums> parameters(parts * g.outputs);
  std::vector<double> kernel_sums(parts * 2 * kernel_size);
  parallel(parts, g.batch, [&](int64_t part, int64_t begin, int64_t end) {
    Arena arena(Window::floats(g) + Workspace::floats(g, in) + Arena::rounded(lanes * g.in()) + Arena::rounded(lanes));
    std::vector<const float*> mu(in.iterations + 1);
    Window window(g, arena);
    Workspace w(g, in, arena, mu.data());
    float* grad_window = arena.take(lanes * g.in());
    float* grad_log_a = arena.take(lanes);
    double* own_kernels = kernel_sums.data() + part * 2 * kernel_size;
    ThreadSums sums{grad_weight.get() + part * g.outputs * weight_size,
                    in.offset ? grad_offset.get() + part * offset_size : nullptr,
                    parameters.data() + part * g.outputs, own_kernels, own_kernels + kernel_size};
    std::fill_n(grad.in_poses + begin * g.inputs * g.in(), (end - begin) * g.inputs * g.in(), 0.0f);
    std::fill_n(grad.in_log_activations + begin * g.inputs, (end - begin) * g.inputs, 0.0f);
    for (int64_t image = begin; image < end; ++image)
      for (int64_t position = 0; position < g.positions; ++position) {
        window.read(g, in, image, position);
        std::fill_n(grad_window, lanes * g.in(), 0.0f);
        std::fill_n(grad_log_a, lanes, 0.0f);
        for (int64_t j = 0; j < g.outputs; ++j) {
          const int64_t o = (image * g.positions + position) * g.outputs + j;
          if (window.voters == 0) {
            sums.parameters[j].beta3 += grad.logits[o];
            continue;
          }
          backward_output(shape, g, in, kernels.of(j), j, window, weight.get() + j * weight_size,
                          in.offset ? offset.get() : nullptr, out.trail + o * trail_size, out.poses + o * g.out(),
                          grad.poses + o * g.out(), grad.logits[o], w, grad_window, grad_log_a, sums);
        }
        const int32_t* index = in.index + position * g.window;
        scatter_add(g, index, grad_window, static_cast<int>(g.in()), grad.in_poses + image * g.inputs * g.in());
        scatter_add(g, index, grad_log_a, 1, grad.in_log_activations + image * g.inputs);
      }
  });
  unpack_sum(g, grad_weight.get(), parts, g.outputs * weight_size, g.outputs, g.weight(), grad.weight);
  if (in.offset) unpack_sum(g, grad_offset.get(), parts, offset_size, 1, g.out(), grad.offset);
  write_parameters(g, in, grad, parts, parameters.data(), kernel_sums.data());
}

}  // namespace
}  // namespace capsroute

extern "C" {

// Returns 0, or 1 when the index table names an input that does not exist.
int capsroute_similarity_forward(const capsroute::Geometry* g, const capsroute::Inputs* in, const capsroute::Outputs* out) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::forward(shape, *g, *in, *out); });
  return 0;
}

int capsroute_similarity_backward(const capsroute::Geometry* g, const capsroute::Inputs* in, const capsroute::Outputs* out,
                                  const capsroute::Gradients* grad) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::backward(shape, *g, *in, *out, *grad); });
  return 0;
}
}
