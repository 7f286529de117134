// The backward pass of EM routing for one group of positions, M-step by M-step from the last to the first.
#pragma once

#include "posterior.hpp"
#include "terms.hpp"

namespace capsroute {
namespace {

// What the backward pass of a group keeps, and what its thread sums over its images.
struct Workspace {
  const Plan& plan;
  Buffer couplings;     // [T - 1][group][J][lanes], those of the M-steps after the first
  Buffer grad_scores;   // the same; first the gradients of the couplings' logarithms
  Buffer grad_moments;  // [T][group][J][2 D]
  Buffer met;           // [group][lanes]: the gradients of those logarithms, summed over what competes
  Buffer meeting;       // the same of the M-step being worked on, summed over what was visited
  Buffer grad_log_a;    // [group][lanes]
  Buffer shares;        // [T - 1][2][lanes]
  Buffer weights;       // [T][lanes]: of one output capsule
  Buffer worths;        // [lanes]
  Buffer by_child;      // [N]
  Buffer score_sums;    // [J]: the gradients of a position's scores, summed over the inputs
  Buffer slopes;        // [2 T - 1][2 D]
  Buffer grad_window, grad_votes;
  std::vector<Term> terms;
  std::vector<Posterior> beliefs;    // with a prior: of each type of a position
  double grad_everyone = 0.0;        // and the gradient of the sum of their counts
  float *grad_weight, *grad_offset;  // the thread's
  double *beta_use, *beta_activate;  // [J], the thread's; doubles, since they sum over all output capsules

  Workspace(const Plan& plan, float* grad_weight, float* grad_offset, double* betas)
      : plan(plan),
        couplings((plan.in.steps - 1) * plan.edges),
        grad_scores((plan.in.steps - 1) * plan.edges),
        grad_moments(plan.in.steps * plan.group * plan.g.outputs * MomentGradients::floats(plan.g.out())),
        met(plan.group * plan.g.lanes()),
        meeting(plan.group * plan.g.lanes()),
        grad_log_a(plan.group * plan.g.lanes()),
        shares((plan.in.steps - 1) * 2 * plan.g.lanes()),
        weights(plan.in.steps * plan.g.lanes()),
        worths(plan.g.lanes()),
        by_child(plan.g.inputs),
        score_sums(plan.g.outputs),
        slopes((2 * plan.in.steps - 1) * 2 * plan.g.out()),
        grad_window(plan.g.lanes() * plan.g.in()),
        grad_votes(kTogether * kLanes * plan.g.out()),
        grad_weight(grad_weight),
        grad_offset(grad_offset),
        beta_use(betas),
        beta_activate(betas + plan.g.outputs) {}

  static constexpr int kTogether = 3;  // blocks whose votes' gradients are made at a time

  // The row of one output capsule of the group, for M-step t; there is none for the first.
  float* edge(Buffer& of, int64_t t, int64_t p, int64_t j) {
    return of.get() + (t - 1) * plan.edges + (p * plan.g.outputs + j) * plan.g.lanes();
  }
  MomentGradients moments(int64_t t, int64_t p, int64_t j) {
    const int64_t size = plan.g.out(), at = (t * plan.group + p) * plan.g.outputs + j;
    return MomentGradients(grad_moments.get() + at * MomentGradients::floats(size), size);
  }
  float* lane_row(Buffer& of, int64_t p) { return of.get() + p * plan.g.lanes(); }
};

// The couplings of all M-steps after the first, from the moments that forward kept.
template <class Shape>
void recompute(Shape shape, int64_t output, int64_t p, int64_t j, const float* votes, Workspace& w) {
  const Plan& plan = w.plan;
  const int lanes = plan.g.lanes();
  for (int64_t t = 1; t < plan.in.steps; ++t) {
    const Moments m = plan.moments(output, t - 1);
    const Scores scores(shape.out, m);
    const float *peak = w.lane_row(w.shares, 2 * t - 2), *inverse = peak + lanes, base = *m.base;
    float* coupling = w.edge(w.couplings, t, p, j);
    sweep<3>(plan.g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
      auto x = scores.of<n>(shape.out, votes + b * shape.out * kLanes) + base - load<n>(peak + b * kLanes);
      for (int k = 0; k < n; ++k) x[k] = at_most(0.0f, x[k]);  // beyond the window there is no peak
      store(coupling + b * kLanes, exp2(x) * load<n>(inverse + b * kLanes));
    });
  }
}

// The gradients of the scores that M-step t made for the next one, of all types of a position; so far those of the
// couplings' logarithms.
inline void competition_backward(int64_t t, int64_t p, Workspace& w) {
  const float* met = w.lane_row(w.met, p);
  for (int64_t j = 0; j < w.plan.g.outputs; ++j) {
    float* grad_score = w.edge(w.grad_scores, t + 1, p, j);
    const float* coupling = w.edge(w.couplings, t + 1, p, j);
    Vec all = {};
    for (int i = 0; i < w.plan.g.lanes(); i += kLanes) {
      const Vec z = load(grad_score + i) - load(coupling + i) * load(met + i);
      store(grad_score + i, z);
      all += z;
    }
    w.score_sums.get()[j] = sum(all);
  }
}

// With a prior: what is believed of all types of a position after M-step t, and the gradient of their counts' sum.
inline void shares_backward(const Gradients& grads, int64_t image, int64_t position, int64_t t, Workspace& w) {
  const Plan& plan = w.plan;
  const Digamma counts = everyone(plan, image, position, t);
  double all = 0.0;
  w.beliefs.clear();
  for (int64_t j = 0; j < plan.g.outputs; ++j) {
    const int64_t output = plan.output(image, position, j);
    w.beliefs.emplace_back(plan, plan.moments(output, t), counts);
    const Posterior& belief = w.beliefs.back();
    all += t + 1 == plan.in.steps ? -grads.logits[output] * std::exp(belief.log_share.value) * belief.entropy
                                  : w.score_sums.get()[j];
  }
  w.grad_everyone = -counts.slope * all;
}

// From the scores that M-step t made for the next one to the Gaussian that made them: centre and squared width.
template <class Shape>
void scores_backward(Shape shape, int64_t t, int64_t p, int64_t j, const float* votes, const Moments& m, Workspace& w,
                     const MomentGradients& grad) {
  weighted_gaps(shape.out, w.plan.g.blocks(), w.edge(w.grad_scores, t + 1, p, j), votes, m.centre, grad.mean, grad.variance);
  for (int d = 0; d < shape.out; ++d) {
    const float precision = 1.0f / m.width[d];
    grad.mean[d] *= precision;
    grad.variance[d] *= 0.5f * precision * precision;
  }
}

// EM: from the logit of M-step t to the variances and, returned, the mass.
template <class Shape>
float logit_backward(Shape shape, int64_t t, int64_t j, float grad_logit, const Moments& m, Workspace& w,
                     const MomentGradients& grad) {
  const float grad_scaled = grad_logit * w.plan.scale(t), grad_cost = -grad_scaled * *m.mass;
  w.beta_activate[j] += grad_scaled;
  w.beta_use[j] += static_cast<double>(grad_cost) * shape.out;
  for (int d = 0; d < shape.out; ++d) grad.variance[d] += 0.5f * grad_cost / m.variance[d];
  return -grad_scaled * w.plan.cost(j, m);
}

// From centre and squared width, and from what all scores of a capsule have in common or, of the last M-step, from its
// logit, to mean and variance and, returned, the mass.
template <class Shape>
float gaussian_backward(Shape shape, int64_t t, int64_t j, float grad_logit, const Moments& m, Workspace& w,
                        const MomentGradients& grad) {
  const bool last = t + 1 == w.plan.in.steps;
  const float sum_of_all = last ? 0.0f : w.score_sums.get()[j];
  if (w.plan.in.prior) {
    const Posterior& belief = w.beliefs[j];
    const double share = std::exp(belief.log_share.value);
    w.beta_activate[j] += last ? grad_logit : 0.0f;
    const double grad_share = last ? -grad_logit * share * belief.entropy : sum_of_all;
    const double grad_precision = 0.5 * (last ? grad_logit * share : sum_of_all);
    const double grad_kappa = 0.5 * sum_of_all * shape.out / (belief.kappa * belief.kappa);
    return static_cast<float>(w.grad_everyone) +
           shrink_backward(w.plan, belief, m, grad_share, grad_precision, grad_kappa, grad.mean, grad.variance);
  }
  if (!last) {
    for (int d = 0; d < shape.out; ++d) grad.variance[d] -= 0.5f * sum_of_all / m.variance[d];
    grad_logit = sum_of_all * sigmoid(-w.plan.logit(t, j, m));
  }
  return logit_backward(shape, t, j, grad_logit, m, w, grad);
}

// From the moments of M-step t to the logarithms of its weights, which are those of couplings and of activations.
template <class Shape>
void m_step_backward(Shape shape, int64_t t, int64_t p, int64_t j, const float* votes, const float* weights, float grad_mass,
                     const Moments& m, Workspace& w, const MomentGradients& grad) {
  const float inverse = inverse_mass(*m.mass);
  float* worths = w.worths.get();
  Vec all = {};
  sweep<3>(w.plan.g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const auto share = load<n>(weights + b * kLanes) * inverse;
    const auto x = worth<n>(shape.out, votes + b * shape.out * kLanes, m.mean, grad) * share;
    store(worths + b * kLanes, x);
    all += x.total();
  });
  // Two passes: the mean must be that of these very numbers, or its rounding would not cancel in the sums to come.
  const float centre = sum(all);
  float *meeting = w.lane_row(w.meeting, p), *grad_log_coupling = t ? w.edge(w.grad_scores, t, p, j) : worths;
  for (int i = 0; i < w.plan.g.lanes(); i += kLanes) {
    const Vec weight = load(weights + i), grad_log = load(worths + i) - weight * inverse * centre + weight * grad_mass;
    store(grad_log_coupling + i, grad_log);
    store(meeting + i, load(meeting + i) + grad_log);
  }
}

// Sums the gradients of the couplings' logarithms over what competes: so far over the types of each position.
inline void meet(Workspace& w) {
  const Plan& plan = w.plan;
  const int64_t rows = plan.group * plan.g.lanes();
  float *meeting = w.meeting.get(), *met = w.met.get(), *by_child = w.by_child.get();
  for (int64_t k = 0; k < rows; ++k) w.grad_log_a.get()[k] += meeting[k];
  std::copy_n(meeting, rows, met);
  std::fill_n(meeting, rows, 0.0f);
  if (!plan.in.parents) return;
  std::fill_n(by_child, plan.g.inputs, 0.0f);
  plan.each_edge([&](int32_t child, int64_t at) { by_child[child] += met[at]; });
  plan.each_edge([&](int32_t child, int64_t at) { met[at] = by_child[child]; });
}

// What each vote contributed to, through mean and variance of each M-step and through its scores, as
// (v - last mean) times a combination of rows, plus another one: their vectors are the halves of `slopes`.
template <class Shape>
void vote_terms(Shape shape, int64_t output, int64_t p, int64_t j, Windows& windows, Workspace& w) {
  const Plan& plan = w.plan;
  const float* last = plan.moments(output, plan.in.steps - 1).mean;
  float* slope = w.slopes.get();
  w.terms.clear();
  for (int64_t t = 0; t < plan.in.steps; ++t) {
    const Moments m = plan.moments(output, t);
    const MomentGradients grad = w.moments(t, p, j);
    const float inverse = inverse_mass(*m.mass);
    for (int d = 0; d < shape.out; ++d) {
      slope[d] = 2.0f * inverse * grad.variance[d];
      slope[shape.out + d] = inverse * grad.mean[d] + slope[d] * (last[d] - m.mean[d]);
    }
    const float* weights = windows.flat(p);
    if (t) {
      multiply_rows(plan.g.lanes(), w.edge(w.couplings, t, p, j), windows.activations(p), w.lane_row(w.weights, t));
      weights = w.lane_row(w.weights, t);
    }
    w.terms.push_back({weights, slope});
    slope += 2 * shape.out;
    if (t + 1 == plan.in.steps) return;
    for (int d = 0; d < shape.out; ++d) {
      slope[d] = -1.0f / m.width[d];
      slope[shape.out + d] = slope[d] * (last[d] - m.centre[d]);
    }
    w.terms.push_back({w.edge(w.grad_scores, t + 1, p, j), slope});
    slope += 2 * shape.out;
  }
}

template <class Shape>
void votes_backward(Shape shape, Plan& plan, int64_t output, int64_t p, int64_t j, Windows& windows, Workspace& w) {
  vote_terms(shape, output, p, j, windows, w);
  const float* mean = plan.moments(output, plan.in.steps - 1).mean;
  const Term* terms = w.terms.data();
  const int count = static_cast<int>(w.terms.size());
  float *grad_weight = w.grad_weight + j * plan.g.lanes() * shape.weight, *grad_votes = w.grad_votes.get();
  sweep<Workspace::kTogether>(plan.g.blocks(), [&](int block, auto n) __attribute__((always_inline)) {
    const float* votes = windows.votes.get() + block * shape.out * kLanes;
    sweep<4>(shape.out, [&](int d, auto k) __attribute__((always_inline)) {
      Pack<n> steep[k()], rest[k()];
      combine(terms, count, block, d, steep);
      for (int e = 0; e < k; ++e) steep[e] = steep[e] * (load<n>(votes + (d + e) * kLanes, shape.out) - mean[d + e]);
      combine(terms, count, block, shape.out + d, rest);
      for (int e = 0; e < k; ++e) store(grad_votes + (d + e) * kLanes, steep[e] + rest[e], shape.out);
    });
    capsroute::votes_backward(shape, n, plan.weights(j) + block * shape.weight * kLanes,
                              windows.poses(p) + block * shape.in * kLanes, grad_votes,
                              grad_weight + block * shape.weight * kLanes, w.grad_window.get() + block * shape.in * kLanes,
                              w.grad_offset ? w.grad_offset + block * shape.out * kLanes : nullptr);
  });
}

// One output capsule at M-step t, from its moments' gradients to those of its weights' logarithms.
template <class Shape>
void backward_output(Shape shape, Plan& plan, const Gradients& grads, int64_t output, int64_t t, int64_t p, int64_t j,
                     Windows& windows, Workspace& w) {
  const float* votes = windows.votes.get();
  const Moments m = plan.moments(output, t);
  const MomentGradients grad = w.moments(t, p, j);
  plan.cast(shape, j, windows.poses(p), windows.votes.get());
  float grad_logit = 0.0f;
  if (t + 1 == plan.in.steps) {
    recompute(shape, output, p, j, votes, w);
    std::copy_n(grads.poses + output * shape.out, shape.out, grad.mean);
    std::fill_n(grad.variance, shape.out, 0.0f);
    grad_logit = grads.logits[output];
  } else {
    scores_backward(shape, t, p, j, votes, m, w, grad);
  }
  const float grad_mass = gaussian_backward(shape, t, j, grad_logit, m, w, grad);
  const float* weights = windows.flat(p);
  if (t) {
    multiply_rows(plan.g.lanes(), w.edge(w.couplings, t, p, j), windows.activations(p), w.weights.get());
    weights = w.weights.get();
  }
  m_step_backward(shape, t, p, j, votes, weights, grad_mass, m, w, grad);
  if (t == 0) votes_backward(shape, plan, output, p, j, windows, w);
}

template <class Shape>
void backward_group(Shape shape, Plan& plan, const Gradients& grads, int64_t image, int64_t first, Windows& windows,
                    Workspace& w) {
  const Geometry& g = plan.g;
  for (int64_t t = plan.in.steps - 1; t >= 0; --t) {
    for (int64_t p = 0; p < plan.group; ++p) {
      if (t + 1 == plan.in.steps)
        for (int64_t row = 0; row < 2 * t; ++row)
          std::copy_n(plan.shares(image, row / 2, first + p) + row % 2 * g.window, g.window, w.lane_row(w.shares, row));
      if (t == 0) std::fill_n(w.grad_window.get(), g.lanes() * g.in(), 0.0f);
      if (t + 1 < plan.in.steps) competition_backward(t, p, w);
      if (plan.in.prior) shares_backward(grads, image, first + p, t, w);
      for (int64_t j = 0; j < g.outputs; ++j)
        backward_output(shape, plan, grads, plan.output(image, first + p, j), t, p, j, windows, w);
      if (t == 0)
        scatter_add(g, plan.index(first + p), w.grad_window.get(), static_cast<int>(g.in()),
                    grads.in_poses + image * g.inputs * g.in());
    }
    meet(w);
  }
  for (int64_t p = 0; p < plan.group; ++p) {
    scatter_add(g, plan.index(first + p), w.lane_row(w.grad_log_a, p), 1, grads.in_logits + image * g.inputs);
    std::fill_n(w.lane_row(w.grad_log_a, p), g.lanes(), 0.0f);
  }
}

}  // namespace
}  // namespace capsroute
