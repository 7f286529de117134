// Similarity routing forward: for each output capsule, votes, then scores, couplings and mean in turns, then the logit.
#pragma once

#include "problem.hpp"

namespace capsroute {
namespace {

// One output capsule on its way through the iterations.
struct Routed {
  Kernel kernel;
  float *votes, *distance, *similarity, *score, *coupling;  // [lanes]; votes [lanes][D]
  float *mu, *trail;                                        // in the outputs
  float inverse;                                            // the couplings' common factor, which `coupling` lacks

  Routed(const Geometry& g, Arena& arena)
      : votes(arena.take(g.lanes() * g.out())),
        distance(arena.take(g.lanes())),
        similarity(arena.take(g.lanes())),
        score(arena.take(g.lanes())),
        coupling(arena.take(g.lanes())) {}
};

// The couplings of the next iteration, from the mean of the last; leaves in the trail what backward will start from.
template <class Shape>
void couple(Shape shape, int blocks, const Window& window, Routed& r) {
  distances(shape, blocks, r.votes, r.mu, r.distance);
  similarities(r.kernel, blocks, r.distance, r.similarity);
  const float shift = softmax_shift(blocks, r.kernel, window, r.similarity);
  r.inverse = 1.0f / couplings(r.kernel, blocks, window, r.similarity, shift, r.score, r.coupling);
  for (int d = 0; d < shape.out; ++d) r.trail[d] = r.mu[d];
  r.trail += shape.out;
}

template <class Shape>
CAPSROUTE_PASS void average(Shape shape, int blocks, Routed& r) {
  weighted_sum(shape.out, blocks, r.coupling, r.votes, r.mu);
  for (int d = 0; d < shape.out; ++d) r.mu[d] *= r.inverse;
}

// logit = beta1 sum c k - beta2 sum c (log c - log a) + beta3, with log c = score - log of their sum.
template <class Shape>
float activate(Shape shape, int blocks, const Window& window, const Routed& r, float beta1, float beta2, float beta3) {
  distances(shape, blocks, r.votes, r.mu, r.distance);
  similarities(r.kernel, blocks, r.distance, r.similarity);
  const LogitTerms terms = logit_terms(blocks, window, r.coupling, r.similarity, r.score);
  return beta1 * terms.agreement * r.inverse - beta2 * (terms.divergence * r.inverse + std::log(r.inverse)) + beta3;
}

template <class Shape>
void forward_window(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Kernels& kernels,
                    Matrices& matrices, const Window& window, Routed& r, int64_t at) {
  const int blocks = g.blocks();
  for (int64_t j = 0; j < g.outputs; ++j) {
    const int64_t o = at * g.outputs + j;
    r.kernel = kernels.of(j);
    r.mu = out.poses + o * shape.out;
    r.trail = out.trail + o * in.iterations * shape.out;
    r.inverse = 1.0f / window.voters;
    votes(shape, blocks, matrices.weight(j), window.poses, matrices.offset(), r.votes);
    weighted_sum(shape.out, blocks, window.flat, r.votes, r.mu);
    if (in.iterations == 0) {
      std::copy_n(window.mask, g.lanes(), r.coupling);
      std::fill_n(r.score, g.lanes(), 0.0f);
    }
    for (int64_t t = 0; t < in.iterations; ++t) {
      couple(shape, blocks, window, r);
      average(shape, blocks, r);
    }
    out.logits[o] = activate(shape, blocks, window, r, in.beta1[j], in.beta2[j], in.beta3[j]);
  }
}

// A window of padding alone: nobody votes, so the pose is zero and the logit is what it is without evidence.
void forward_empty(const Geometry& g, const Inputs& in, const Outputs& out, int64_t at) {
  const int64_t o = at * g.outputs, trail = in.iterations * g.out();
  std::fill_n(out.poses + o * g.out(), g.outputs * g.out(), 0.0f);
  std::fill_n(out.trail + o * trail, g.outputs * trail, 0.0f);
  std::copy_n(in.beta3, g.outputs, out.logits + o);
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  Matrices matrices(g, in);
  const Kernels kernels(g, in);
  parallel(g.threads, g.batch * g.positions, [&](int64_t, int64_t begin, int64_t end) {
    Arena arena;
    Window window(g, arena);
    Routed routed(g, arena);
    for (int64_t at = begin; at < end; ++at) {
      window.read(g, in, at / g.positions, at % g.positions);
      if (window.voters == 0)
        forward_empty(g, in, out, at);
      else
        forward_window(shape, g, in, out, kernels, matrices, window, routed, at);
    }
  });
}

}  // namespace
}  // namespace capsroute
