// EM routing, forward and backward, without ever storing a vote.
//
// An M-step computes the votes of one (window, output type) into a buffer that fits the first-level cache, forms its
// Gaussian, scores the votes for the E-step and drops them; backward computes them again, once for each M-step. What there
// is one number of per edge lives in a thread's scratch, for the positions that compete with each other: all of an image,
// or one. README.md derives what is computed here.
#include "backward.hpp"
#include "e_step.hpp"
#include "posterior.hpp"

namespace capsroute {
namespace {

template <class Shape>
void m_step(Shape shape, const Plan& plan, const float* votes, const float* weights, float mass, const Moments& m) {
  const int blocks = plan.g.blocks();
  const float inverse = inverse_mass(mass);
  weighted_sum(shape.out, blocks, weights, votes, m.mean);
  for (int d = 0; d < shape.out; ++d) m.mean[d] *= inverse;
  weighted_squares(shape.out, blocks, weights, votes, m.mean, m.variance);
  for (int d = 0; d < shape.out; ++d) m.variance[d] = m.variance[d] * inverse + plan.least_variance();
  *m.mass = mass;
  if (plan.in.prior) shrink(plan, m);
}

// The logits of the output capsules of a position, once all their moments are there: logarithms are slow to arrive, so they
// are taken in one go. What all scores of a capsule have in common is large; counted from the group's first, it loses less.
void logits(const Plan& plan, int64_t image, int64_t position, bool first, int64_t t, EStep& e) {
  const Geometry& g = plan.g;
  const Digamma counts = plan.in.prior ? everyone(plan, image, position, t) : Digamma{};
  for (int64_t j = 0; j < g.outputs; ++j) {
    const int64_t o = plan.output(image, position, j);
    const Moments m = plan.moments(o, t);
    double spread = 0.5 * sum_of_logs(static_cast<int>(g.out()), m.width), base;
    float logit;
    if (plan.in.prior) {
      spread += 0.5 * g.out() * std::log(static_cast<double>(plan.in.prior->degrees + *m.mass));  // that of the scatter
      *m.spread = static_cast<float>(spread);
      const Posterior belief(plan, m, counts);
      logit = belief.logit(plan.in.beta_activate[j]);
      base = belief.base(g.out()) / std::log(2.0);
    } else {
      *m.spread = static_cast<float>(spread);
      logit = plan.logit(t, j, m);
      base = (log_sigmoid(logit) - spread) / std::log(2.0);
    }
    if (first && j == 0) e.origin = base;
    *m.base = static_cast<float>(base - e.origin);
    e.bases.get()[j] = *m.base;
    if (t + 1 < plan.in.steps) continue;
    std::copy_n(m.centre, g.out(), plan.out.poses + o * g.out());
    plan.out.logits[o] = logit;
  }
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
        const Moments m = plan.moments(plan.output(image, first + p, j), t);
        plan.cast(shape, j, windows.poses(p), windows.votes.get());
        const float mass = t ? multiply_rows(g.lanes(), e.scores(p, j), e.factor(p), weights) : flat_mass;
        m_step(shape, plan, votes, t ? weights : windows.flat(p), mass, m);
        if (last) continue;
        const Scores scores(shape.out, m);
        sweep<3>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
          store(e.scores(p, j) + b * kLanes, scores.of<n>(shape.out, votes + b * shape.out * kLanes));
        });
      }
      logits(plan, image, first + p, p == 0, t, e);
      if (!last) e.close(p);
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
