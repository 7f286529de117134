// What backward keeps of one output capsule, and how it gets it back from the means that forward left.
#pragma once

#include "problem.hpp"
#include "terms.hpp"

namespace capsroute {
namespace {

// All that the backward pass of one output capsule keeps, for t = 0 ... T.
struct Workspace {
  int lanes, components, iterations;
  float *votes, *grad_votes;                              // [lanes][D]; three blocks of it
  float *coupling, *distance, *similarity, *pull, *grad;  // [T + 1][lanes]; pull begins as the kernel's slope
  float* inverse;                                         // [T + 1]: the common factor that a row of `coupling` lacks
  float* parts;                                           // [T + 1][Q][lanes]: the exponentials
  float *score, *pull_total, *grad_coupling;              // [lanes]
  float *grad_mu, *share;        // [T + 1][D]; share: grad_mu times the factor of its couplings
  std::vector<const float*> mu;  // [T + 1]
  std::vector<Term> terms;       // of a vote's gradient: mu_t, and the shares but the first

  Workspace(const Geometry& g, const Inputs& in, Arena& arena)
      : lanes(g.lanes()),
        components(static_cast<int>(in.components)),
        iterations(static_cast<int>(in.iterations)),
        mu(in.iterations + 1),
        terms(2 * in.iterations + 1) {
    const int64_t rows = (iterations + 1) * lanes;
    votes = arena.take(lanes * g.out());
    grad_votes = arena.take(3 * kLanes * g.out());
    for (float** row : {&coupling, &distance, &similarity, &pull, &grad}) *row = arena.take(rows);
    parts = arena.take(rows * components);
    for (float** row : {&score, &pull_total, &grad_coupling}) *row = arena.take(lanes);
    for (float** row : {&grad_mu, &share}) *row = arena.take((iterations + 1) * g.out());
    inverse = arena.take(iterations + 1);
    for (int t = 0; t <= iterations; ++t) terms[t].row = pull + t * lanes;
    for (int t = 1; t <= iterations; ++t) terms[iterations + t] = {coupling + t * lanes, share + t * g.out()};
  }

  // Take the means of the next output capsule.
  void follow(const float* trail, const float* last, int size) {
    for (int t = 0; t <= iterations; ++t) terms[t].vector = mu[t] = t < iterations ? trail + t * size : last;
  }
};

// k and its slope for a row of distances, and the exponentials they are made of.
CAPSROUTE_PASS void kernel_values(Kernel kernel, int blocks, const float* distance, float* parts, float* similarity,
                                  float* slope) {
  sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto far = load<n>(distance + b * kLanes);
    auto k = zeros<n>(), falling = zeros<n>();
    for (int q = 0; q < kernel.components; ++q) {
      const auto e = exp2(far * kernel.rate[q]);
      store(parts + (q * blocks + b) * kLanes, e);
      k = k + e * kernel.height[q];
      falling = falling + e * kernel.slope[q];
    }
    store(similarity + b * kLanes, k);
    store(slope + b * kLanes, falling);
  });
}

// Recomputes, from the means that forward kept, the kernel values of all iterations, and couplings without their
// factors.
template <class Shape>
LogitTerms recompute(Shape shape, int blocks, const Kernel& kernel, const Window& window, Workspace& w) {
  if (w.iterations == 0) {
    std::copy_n(window.mask, w.lanes, w.coupling);
    std::fill_n(w.score, w.lanes, 0.0f);
  }
  w.inverse[0] = 1.0f / window.voters;
  for (int t = 0; t <= w.iterations; ++t) {
    const int row = t * w.lanes;
    distances(shape, blocks, w.votes, w.mu[t], w.distance + row);
    kernel_values(kernel, blocks, w.distance + row, w.parts + row * w.components, w.similarity + row, w.pull + row);
    if (t == w.iterations) break;
    const float shift = softmax_shift(blocks, kernel, window, w.similarity + row);
    float* coupling = w.coupling + row + w.lanes;
    w.inverse[t + 1] = 1.0f / couplings(kernel, blocks, window, w.similarity + row, shift, w.score, coupling);
  }
  const int row = w.iterations * w.lanes;
  const float inverse = w.inverse[w.iterations];
  const LogitTerms terms = logit_terms(blocks, window, w.coupling + row, w.similarity + row, w.score);
  return {terms.agreement * inverse, terms.divergence * inverse + std::log(inverse)};
}

}  // namespace
}  // namespace capsroute
