// EM routing, forward and backward, without ever storing a vote.
//
// An M-step computes the votes of one (window, output type) into a buffer that fits the first-level cache, forms its
// Gaussian, scores the votes for the E-step and drops them; backward computes them again, once for each M-step. What there
// is one number of per edge lives in a thread's scratch, for the positions that compete with each other: all of an image,
// or one. README.md derives what is computed here.
#include "e_step.hpp"

namespace capsroute {
namespace {

// out = a * b; returns the sum.
float multiply_rows(int lanes, const float* a, const float* b, float* out) {
  Vec all = {};
  for (int i = 0; i < lanes; i += kLanes) {
    const Vec x = load(a + i) * load(b + i);
    store(out + i, x);
    all += x;
  }
  return sum(all);
}

float total(int lanes, const float* row) {
  Vec all = {};
  for (int i = 0; i < lanes; i += kLanes) all += load(row + i);
  return sum(all);
}

template <class Shape>
void m_step(Shape shape, const Plan& plan, const float* votes, const float* weights, float mass, const Moments& m) {
  const int blocks = plan.g.blocks();
  const float inverse = inverse_mass(mass);
  weighted_sum(shape.out, blocks, weights, votes, m.mean);
  for (int d = 0; d < shape.out; ++d) m.mean[d] *= inverse;
  weighted_squares(shape.out, blocks, weights, votes, m.mean, m.variance);
  for (int d = 0; d < shape.out; ++d) m.variance[d] = m.variance[d] * inverse + plan.least_variance();
  *m.mass = mass;
  *m.spread = 0.5f * sum_of_logs(shape.out, m.variance);
}

template <class Shape>
void forward_group(Shape shape, Plan& plan, int64_t image, int64_t first, Windows& windows, EStep& e, float* weights) {
  const Geometry& g = plan.g;
  const float* votes = windows.votes.get();
  for (int64_t t = 0; t < plan.in.steps; ++t) {
    const bool last = t + 1 == plan.in.steps;
    for (int64_t p = 0; p < plan.group; ++p) {
      const float flat_mass = total(g.lanes(), windows.flat(p));
      for (int64_t j = 0; j < g.outputs; ++j) {
        const int64_t o = plan.output(image, first + p, j);
        const Moments m = plan.moments(o, t);
        plan.cast(shape, j, windows.poses(p), windows.votes.get());
        const float mass = t ? multiply_rows(g.lanes(), e.scores(p, j), e.factor(p), weights) : flat_mass;
        m_step(shape, plan, votes, t ? weights : windows.flat(p), mass, m);
        const float logit = plan.logit(t, j, m);
        if (last) {
          std::copy_n(m.mean, g.out(), plan.out.poses + o * g.out());
          plan.out.logits[o] = logit;
          continue;
        }
        const Scores scores(shape.out, m, logit);
        sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
          store(e.scores(p, j) + b * kLanes, scores.of<n>(shape.out, votes + b * shape.out * kLanes, m.mean));
        });
      }
    }
    if (!last) e.normalise(windows, image, t, first);
  }
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  Plan plan(g, in, out);
  parallel(g.threads, g.batch, [&](int64_t, int64_t begin, int64_t end) {
    Windows windows(plan);
    EStep e(plan);
    Buffer weights(g.lanes());
    for (int64_t image = begin; image < end; ++image) {
      windows.enter(image);
      for (int64_t first = 0; first < g.positions; first += plan.group) {
        windows.read(first);
        forward_group(shape, plan, image, first, windows, e, weights.get());
      }
    }
  });
}

// What the backward pass of a group keeps, and what its thread sums over its images.
struct Workspace {
  const Plan& plan;
  Buffer couplings;     // [T - 1][group][J][lanes], those of the M-steps after the first
  Buffer grad_scores;   // the same; first the gradients of the couplings' logarithms
  Buffer grad_moments;  // [T][group][J][3 D]
  Buffer met;           // [group][lanes]: the gradients of those logarithms, summed over what competes
  Buffer meeting;       // the same of the M-step being worked on, summed over what was visited
  Buffer grad_log_a;    // [group][lanes]
  Buffer shares;        // [T - 1][2][lanes]
  Buffer weights;       // [T][lanes]: of one output capsule
  Buffer worths;
  Buffer by_child;      // [N]
  Buffer grad_window, grad_votes;
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
        grad_window(plan.g.lanes() * plan.g.in()),
        grad_votes(kLanes * plan.g.out()),
        grad_weight(grad_weight),
        grad_offset(grad_offset),
        beta_use(betas),
        beta_activate(betas + plan.g.outputs) {}

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
    const Scores scores(shape.out, m, plan.logit(t - 1, j, m));
    const float *peak = w.shares.get() + (t - 1) * 2 * lanes, *inverse = peak + lanes;
    float* coupling = w.edge(w.couplings, t, p, j);
    sweep<2>(plan.g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
      auto x = scores.of<n>(shape.out, votes + b * shape.out * kLanes, m.mean) - load<n>(peak + b * kLanes);
      for (int k = 0; k < n; ++k) x[k] = at_most(0.0f, x[k]);  // beyond the window there is no peak
      store(coupling + b * kLanes, exp2(x) * load<n>(inverse + b * kLanes));
    });
  }
}

// From the scores of M-step t's votes, made for the next one, to its moments; returns the gradient of its logit.
template <class Shape>
float scores_backward(Shape shape, int64_t t, int64_t p, int64_t j, const float* votes, const Moments& m, Workspace& w,
                      const MomentGradients& grad) {
  const int lanes = w.plan.g.lanes();
  float* grad_score = w.edge(w.grad_scores, t + 1, p, j);
  const float *coupling = w.edge(w.couplings, t + 1, p, j), *met = w.lane_row(w.met, p);
  Vec all = {};
  for (int i = 0; i < lanes; i += kLanes) {
    const Vec z = load(grad_score + i) - load(coupling + i) * load(met + i);
    store(grad_score + i, z);
    all += z;
  }
  const float sum_of_all = sum(all);
  weighted_gaps(shape.out, w.plan.g.blocks(), grad_score, votes, m.mean, grad.mean, grad.variance);
  for (int d = 0; d < shape.out; ++d) {
    grad.mean[d] *= grad.precision[d];
    grad.variance[d] = 0.5f * grad.precision[d] * (grad.variance[d] * grad.precision[d] - sum_of_all);
  }
  return sum_of_all * sigmoid(-w.plan.logit(t, j, m));
}

// From the logit of M-step t to the variances and, returned, the mass.
template <class Shape>
float logit_backward(Shape shape, int64_t t, int64_t j, float grad_logit, const Moments& m, Workspace& w,
                     const MomentGradients& grad) {
  const float grad_scaled = grad_logit * w.plan.scale(t), grad_cost = -grad_scaled * *m.mass;
  w.beta_activate[j] += grad_scaled;
  w.beta_use[j] += static_cast<double>(grad_cost) * shape.out;
  for (int d = 0; d < shape.out; ++d) grad.variance[d] += 0.5f * grad_cost * grad.precision[d];
  return -grad_scaled * w.plan.cost(j, m);
}

// From the moments of M-step t to the logarithms of its weights, which are those of couplings and of activations.
template <class Shape>
void m_step_backward(Shape shape, int64_t t, int64_t p, int64_t j, const float* votes, const float* weights, float grad_mass,
                     const Moments& m, Workspace& w, const MomentGradients& grad) {
  const float inverse = inverse_mass(*m.mass);
  float* worths = w.worths.get();
  Vec all = {};
  sweep<2>(w.plan.g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const auto x = worth<n>(shape.out, votes + b * shape.out * kLanes, m.mean, grad) * (load<n>(weights + b * kLanes) * inverse);
    store(worths + b * kLanes, x);
    all += x.total();
  });
  const float centre = sum(all);
  float *meeting = w.lane_row(w.meeting, p), *grad_log_coupling = t ? w.edge(w.grad_scores, t, p, j) : worths;
  for (int i = 0; i < w.plan.g.lanes(); i += kLanes) {
    const Vec weight = load(weights + i), grad_log = load(worths + i) - weight * inverse * centre + weight * grad_mass;
    store(grad_log_coupling + i, grad_log);
    store(meeting + i, load(meeting + i) + grad_log);
  }
}

// Sums the gradients of the couplings' logarithms over what competes: so far over the types of each position.
void meet(Workspace& w) {
  const Plan& plan = w.plan;
  const int64_t rows = plan.group * plan.g.lanes();
  float *meeting = w.meeting.get(), *met = w.met.get(), *by_child = w.by_child.get();
  for (int64_t k = 0; k < rows; ++k) w.grad_log_a.get()[k] += meeting[k];
  std::swap_ranges(met, met + rows, meeting);
  std::fill_n(meeting, rows, 0.0f);
  if (!plan.in.parents) return;
  std::fill_n(by_child, plan.g.inputs, 0.0f);
  plan.each_edge([&](int32_t child, int64_t at) { by_child[child] += met[at]; });
  plan.each_edge([&](int32_t child, int64_t at) { met[at] = by_child[child]; });
}

// dv_i[d] for kCount numbers of the votes of one block: through mean and variance of each M-step, and through its scores.
template <int kCount>
CAPSROUTE_INLINE void vote_gradient(int64_t output, int64_t p, int64_t j, int block, int d, const float* votes, Workspace& w) {
  const int64_t steps = w.plan.in.steps;
  Vec acc[kCount];
  for (int k = 0; k < kCount; ++k) acc[k] = Vec{};
  for (int64_t t = 0; t < steps; ++t) {
    const Vec share = load(w.lane_row(w.weights, t) + block * kLanes);
    const Vec score = t + 1 < steps ? load(w.edge(w.grad_scores, t + 1, p, j) + block * kLanes) : Vec{};
    const float* mean = w.plan.moments(output, t).mean + d;
    const MomentGradients grad = w.moments(t, p, j);
    for (int k = 0; k < kCount; ++k) {
      const Vec gap = load(votes + (d + k) * kLanes) - mean[k];
      acc[k] += share * grad.mean[d + k];
      acc[k] += gap * (share * (2.0f * grad.variance[d + k]) - score * grad.precision[d + k]);
    }
  }
  for (int k = 0; k < kCount; ++k) store(w.grad_votes.get() + (d + k) * kLanes, acc[k]);
}

template <class Shape>
void votes_backward(Shape shape, Plan& plan, int64_t output, int64_t p, int64_t j, Windows& windows, Workspace& w) {
  const int blocks = plan.g.blocks(), lanes = plan.g.lanes();
  for (int64_t t = 0; t < plan.in.steps; ++t) {
    const Vec inverse = splat(inverse_mass(*plan.moments(output, t).mass));
    const float *coupling = t ? w.edge(w.couplings, t, p, j) : nullptr, *flat = windows.flat(p), *a = windows.activations(p);
    float* share = w.lane_row(w.weights, t);
    for (int i = 0; i < lanes; i += kLanes)
      store(share + i, (t ? load(coupling + i) * load(a + i) : load(flat + i)) * inverse);
  }
  float* grad_weight = w.grad_weight + j * lanes * shape.weight;
  for (int b = 0; b < blocks; ++b) {
    const float* votes = windows.votes.get() + b * shape.out * kLanes;
    sweep<4>(shape.out, [&](int d, auto n) __attribute__((always_inline)) {
      vote_gradient<n>(output, p, j, b, d, votes, w);
    });
    votes_backward_block(shape, plan.weights(j) + b * shape.weight * kLanes, windows.poses(p) + b * shape.in * kLanes,
                         w.grad_votes.get(), grad_weight + b * shape.weight * kLanes,
                         w.grad_window.get() + b * shape.in * kLanes,
                         w.grad_offset ? w.grad_offset + b * shape.out * kLanes : nullptr);
  }
}

// One output capsule at M-step t, from its moments' gradients to those of its weights' logarithms.
template <class Shape>
void backward_output(Shape shape, Plan& plan, const Gradients& grads, int64_t output, int64_t t, int64_t p, int64_t j,
                     Windows& windows, Workspace& w) {
  const bool last = t + 1 == plan.in.steps;
  const float* votes = windows.votes.get();
  const Moments m = plan.moments(output, t);
  const MomentGradients grad = w.moments(t, p, j);
  plan.cast(shape, j, windows.poses(p), windows.votes.get());
  for (int d = 0; d < shape.out; ++d) grad.precision[d] = 1.0f / m.variance[d];
  float grad_logit = 0.0f;
  if (last) {
    recompute(shape, output, p, j, votes, w);
    std::copy_n(grads.poses + output * shape.out, shape.out, grad.mean);
    std::fill_n(grad.variance, shape.out, 0.0f);
    grad_logit = grads.logits[output];
  } else {
    grad_logit = scores_backward(shape, t, p, j, votes, m, w, grad);
  }
  const float grad_mass = logit_backward(shape, t, j, grad_logit, m, w, grad);
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

template <class Shape>
void backward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grads) {
  Plan plan(g, in, out);
  const int64_t parts = std::max<int64_t>(1, std::min(g.threads, g.batch));
  const int64_t weight_size = g.outputs * g.lanes() * g.weight(), offset_size = in.offset ? g.lanes() * g.out() : 0;
  Buffer grad_weight(parts * weight_size), grad_offset(parts * offset_size);
  std::vector<double> betas(parts * 2 * g.outputs);
  parallel(parts, g.batch, [&](int64_t part, int64_t begin, int64_t end) {
    Windows windows(plan);
    Workspace w(plan, grad_weight.get() + part * weight_size,
                in.offset ? grad_offset.get() + part * offset_size : nullptr, betas.data() + part * 2 * g.outputs);
    std::fill_n(grads.in_poses + begin * g.inputs * g.in(), (end - begin) * g.inputs * g.in(), 0.0f);
    std::fill_n(grads.in_logits + begin * g.inputs, (end - begin) * g.inputs, 0.0f);
    for (int64_t image = begin; image < end; ++image) {
      windows.enter(image);
      for (int64_t first = 0; first < g.positions; first += plan.group) {
        windows.read(first);
        backward_group(shape, plan, grads, image, first, windows, w);
      }
      for (int64_t n = image * g.inputs; n < (image + 1) * g.inputs; ++n) grads.in_logits[n] *= sigmoid(-in.logits[n]);
    }
  });
  unpack_sum(g, grad_weight.get(), parts, weight_size, g.outputs, g.weight(), grads.weight);
  if (in.offset) unpack_sum(g, grad_offset.get(), parts, offset_size, 1, g.out(), grads.offset);
  for (int64_t j = 0; j < g.outputs; ++j) {
    double use = 0.0, activate = 0.0;
    for (int64_t part = 0; part < parts; ++part) {
      use += betas[part * 2 * g.outputs + j];
      activate += betas[(part * 2 + 1) * g.outputs + j];
    }
    grads.beta_use[j] = static_cast<float>(use);
    grads.beta_activate[j] = static_cast<float>(activate);
  }
}

}  // namespace
}  // namespace capsroute

extern "C" {

// Returns 0, or 1 when the index table names an input that does not exist.
int capsroute_em_forward(const capsroute::Geometry* g, const capsroute::Inputs* in, const capsroute::Outputs* out) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::forward(shape, *g, *in, *out); });
  return 0;
}

int capsroute_em_backward(const capsroute::Geometry* g, const capsroute::Inputs* in, const capsroute::Outputs* out,
                          const capsroute::Gradients* grads) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::backward(shape, *g, *in, *out, *grads); });
  return 0;
}
}
