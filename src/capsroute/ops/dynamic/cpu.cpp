// Dynamic and entropy routing, forward and backward, without ever storing a vote of more than one window.
//
// Output types compete within a window, so one window at a time is routed from its first couplings to its last. Scores are
// v . target, in base 2, where the target of an output capsule is all that tells the two routings apart. README.md derives
// what is computed here.
#include "competition.hpp"
#include "plan.hpp"
#include "terms.hpp"

namespace capsroute {
namespace {

// The softmax of an iteration: agreements [J][lanes] times their gains [J], added to `scores` where these add up, give the
// couplings, which take the agreements' place.
void couple(const Geometry& g, bool adds_up, Window& window, const float* gains, float* scores, float* rows) {
  const int lanes = g.lanes();
  for (int64_t j = 0; j < g.outputs; ++j)
    for (int i = 0; i < lanes; i += kLanes) {
      const Vec score = load(rows + j * lanes + i) * gains[j];
      const Vec all = adds_up ? score + load(scores + j * lanes + i) : score;
      store(scores + j * lanes + i, all);
      store(rows + j * lanes + i, all);
    }
  float *peak = window.peak.get(), *total = window.total.get();
  exponentials(g.outputs, lanes, rows, peak, total);
  for (int i = 0; i < lanes; i += kLanes) {
    const Vec inverse = load(window.mask.get() + i) / load(total + i);
    for (int64_t j = 0; j < g.outputs; ++j) store(rows + j * lanes + i, load(rows + j * lanes + i) * inverse);
  }
}

// row = v . vector
template <class Shape>
void dot_row(Shape shape, int blocks, const float* votes, const float* vector, float* row) {
  sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    store(row + b * kLanes, dot<n>(shape.out, votes + b * shape.out * kLanes, vector));
  });
}

template <class Shape>
void forward_window(Shape shape, Plan& plan, int64_t at, Window& window, float* rows, float* scores, float* gains) {
  const Geometry& g = plan.g;
  const int64_t last = plan.in.iterations - 1;
  for (int64_t t = 0; t <= last; ++t) {
    for (int64_t j = 0; j < g.outputs; ++j) {
      const float* votes = window.votes(shape, j);
      float *sum = plan.sums(at, j, t), *row = rows + j * g.lanes();
      weighted_sum(shape.out, g.blocks(), t ? row : window.flat.get(), votes, sum);
      if (t < last) dot_row(shape, g.blocks(), votes, sum, row);
    }
    if (t == last) break;
    // square roots and divisions are slow to arrive: in one go they overlap
    for (int64_t j = 0; j < g.outputs; ++j) gains[j] = kLog2E * plan.target(plan.sums(at, j, t)).scale;
    couple(g, t && !plan.in.unit, window, gains, scores, rows);
  }
  for (int64_t j = 0; j < g.outputs; ++j) {
    float* sum = plan.sums(at, j, last);
    const Squash squash(shape.out, sum);
    for (int d = 0; d < shape.out; ++d) sum[d] *= squash.shrink;
    plan.squared(at, j) = squash.squared;
    plan.out.logits[at * g.outputs + j] = std::log(squash.squared + kTiny);
  }
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  Plan plan(g, in, out);
  parallel(g.threads, g.batch * g.positions, [&](int64_t, int64_t begin, int64_t end) {
    Window window(plan);
    Buffer rows(g.outputs * g.lanes()), scores(g.outputs * g.lanes()), gains(g.outputs);
    for (int64_t at = begin; at < end; ++at) {
      window.read(at / g.positions, at % g.positions);
      forward_window(shape, plan, at, window, rows.get(), scores.get(), gains.get());
    }
  });
}

// What the backward pass of one window keeps; rows are [J][lanes], vectors [J][D].
struct Workspace {
  const Plan& plan;
  Buffer couplings;    // [T] rows
  Buffer grad_scores;  // [T - 1] rows: of the agreement with the target of iteration t
  Buffer worths;       // rows: the gradients of the couplings
  Buffer targets;      // [T - 1] vectors
  Buffer grad_sums;    // [T] vectors
  Buffer grad_votes, grad_window, scores, gains;
  std::vector<Term> terms;
  float *grad_weight, *grad_offset;  // the thread's

  Workspace(const Plan& plan, float* grad_weight, float* grad_offset)
      : plan(plan),
        couplings(plan.in.iterations * rows()),
        grad_scores((plan.in.iterations - 1) * rows()),
        worths(rows()),
        targets((plan.in.iterations - 1) * vectors()),
        grad_sums(plan.in.iterations * vectors()),
        grad_votes(kTogether * kLanes * plan.g.out()),
        grad_window(plan.g.lanes() * plan.g.in()),
        scores(rows()),
        gains(plan.g.outputs),
        grad_weight(grad_weight),
        grad_offset(grad_offset) {
    std::fill_n(gains.get(), plan.g.outputs, kLog2E);
  }

  static constexpr int kTogether = 3;  // blocks whose votes' gradients are made at a time

  int64_t rows() const { return plan.g.outputs * plan.g.lanes(); }
  int64_t vectors() const { return plan.g.outputs * plan.g.out(); }
  float* row(Buffer& of, int64_t t, int64_t j) { return of.get() + t * rows() + j * plan.g.lanes(); }
  float* vector(Buffer& of, int64_t t, int64_t j) { return of.get() + t * vectors() + j * plan.g.out(); }
};

// The couplings of all iterations, from the sums that forward kept; and what the last ones are worth.
template <class Shape>
void recompute(Shape shape, const Gradients& grads, int64_t at, Window& window, Workspace& w) {
  const Plan& plan = w.plan;
  const Geometry& g = plan.g;
  const int64_t last = plan.in.iterations - 1;
  for (int64_t j = 0; j < g.outputs; ++j) {
    const int64_t o = at * g.outputs + j;
    const Squash squash(plan.squared(at, j));
    const float* pose = plan.sums(at, j, last);
    float sum[kMaxPose], *grad = w.vector(w.grad_sums, last, j);
    for (int d = 0; d < shape.out; ++d) sum[d] = pose[d] / squash.shrink;
    std::copy_n(grads.poses + o * shape.out, shape.out, grad);
    squash.backward(shape.out, sum, grads.logits[o], grad);
    for (int64_t t = 0; t < last; ++t) {
      const float *sum = plan.sums(at, j, t), scale = plan.target(sum).scale;
      float* target = w.vector(w.targets, t, j);
      for (int d = 0; d < shape.out; ++d) target[d] = scale * sum[d];
    }
  }
  for (int64_t j = 0; j < g.outputs; ++j) {
    const float* votes = window.votes(shape, j);
    std::copy_n(window.flat.get(), g.lanes(), w.row(w.couplings, 0, j));
    for (int64_t t = 0; t < last; ++t)
      dot_row(shape, g.blocks(), votes, w.vector(w.targets, t, j), w.row(w.couplings, t + 1, j));
    if (last) dot_row(shape, g.blocks(), votes, w.vector(w.grad_sums, last, j), w.row(w.worths, 0, j));
  }
  for (int64_t t = 1; t <= last; ++t)
    couple(g, t > 1 && !plan.in.unit, window, w.gains.get(), w.scores.get(), w.row(w.couplings, t, 0));
}

// Through the softmax that gave the couplings of iteration t, to the agreements with the targets before it.
void couplings_backward(int64_t t, Workspace& w) {
  const Geometry& g = w.plan.g;
  const int lanes = g.lanes();
  const bool adds_up = !w.plan.in.unit && t + 1 < w.plan.in.iterations;
  for (int i = 0; i < lanes; i += kLanes) {
    Vec mean = {};
    for (int64_t j = 0; j < g.outputs; ++j)
      mean += load(w.row(w.couplings, t, j) + i) * load(w.row(w.worths, 0, j) + i);
    for (int64_t j = 0; j < g.outputs; ++j) {
      const Vec c = load(w.row(w.couplings, t, j) + i), grad = c * (load(w.row(w.worths, 0, j) + i) - mean);
      store(w.row(w.grad_scores, t - 1, j) + i, adds_up ? grad + load(w.row(w.grad_scores, t, j) + i) : grad);
    }
  }
}

// What each vote contributed to: through the sum and through the score of each iteration.
template <class Shape>
void votes_backward(Shape shape, Plan& plan, int64_t j, Window& window, Workspace& w) {
  w.terms.clear();
  for (int64_t t = 0; t < plan.in.iterations; ++t) {
    w.terms.push_back({w.row(w.couplings, t, j), w.vector(w.grad_sums, t, j)});
    if (t + 1 < plan.in.iterations) w.terms.push_back({w.row(w.grad_scores, t, j), w.vector(w.targets, t, j)});
  }
  float *grad_weight = w.grad_weight + j * plan.g.lanes() * shape.weight, *grad_votes = w.grad_votes.get();
  sweep<Workspace::kTogether>(plan.g.blocks(), [&](int block, auto n) __attribute__((always_inline)) {
    sweep<4>(shape.out, [&](int d, auto k) __attribute__((always_inline)) {
      Pack<n> acc[k()];
      combine(w.terms.data(), static_cast<int>(w.terms.size()), block, d, acc);
      for (int e = 0; e < k; ++e) store(grad_votes + (d + e) * kLanes, acc[e], shape.out);
    });
    capsroute::votes_backward(shape, n, plan.weights(j) + block * shape.weight * kLanes,
                              window.poses.get() + block * shape.in * kLanes, grad_votes,
                              grad_weight + block * shape.weight * kLanes, w.grad_window.get() + block * shape.in * kLanes,
                              w.grad_offset ? w.grad_offset + block * shape.out * kLanes : nullptr);
  });
}

template <class Shape>
void backward_window(Shape shape, Plan& plan, const Gradients& grads, int64_t at, Window& window, Workspace& w) {
  const Geometry& g = plan.g;
  const int64_t last = plan.in.iterations - 1;
  recompute(shape, grads, at, window, w);
  for (int64_t t = last - 1; t >= 0; --t) {
    couplings_backward(t + 1, w);
    for (int64_t j = 0; j < g.outputs; ++j) {
      float* grad = w.vector(w.grad_sums, t, j);
      const float *sum = plan.sums(at, j, t), *votes = window.votes(shape, j);
      weighted_sum(shape.out, g.blocks(), w.row(w.grad_scores, t, j), votes, grad);
      plan.target(sum).backward(shape.out, sum, grad);
      if (t) dot_row(shape, g.blocks(), votes, grad, w.row(w.worths, 0, j));
    }
  }
  for (int64_t j = 0; j < g.outputs; ++j) votes_backward(shape, plan, j, window, w);
}

template <class Shape>
void backward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grads) {
  Plan plan(g, in, out);
  const int64_t parts = std::max<int64_t>(1, std::min(g.threads, g.batch));
  const int64_t weight_size = g.outputs * g.lanes() * g.weight(), offset_size = in.offset ? g.lanes() * g.out() : 0;
  Buffer grad_weight(parts * weight_size), grad_offset(parts * offset_size);
  parallel(parts, g.batch, [&](int64_t part, int64_t begin, int64_t end) {
    Window window(plan);
    Workspace w(plan, grad_weight.get() + part * weight_size,
                in.offset ? grad_offset.get() + part * offset_size : nullptr);
    std::fill_n(grads.in_poses + begin * g.inputs * g.in(), (end - begin) * g.inputs * g.in(), 0.0f);
    for (int64_t at = begin * g.positions; at < end * g.positions; ++at) {
      const int64_t image = at / g.positions, position = at % g.positions;
      window.read(image, position);
      std::fill_n(w.grad_window.get(), g.lanes() * g.in(), 0.0f);
      backward_window(shape, plan, grads, at, window, w);
      scatter_add(g, in.index + position * g.window, w.grad_window.get(), static_cast<int>(g.in()),
                  grads.in_poses + image * g.inputs * g.in());
    }
  });
  unpack_sum(g, grad_weight.get(), parts, weight_size, g.outputs, g.weight(), grads.weight);
  if (in.offset) unpack_sum(g, grad_offset.get(), parts, offset_size, 1, g.out(), grads.offset);
}

}  // namespace
}  // namespace capsroute

extern "C" {

// Returns 0, or 1 when the index table names an input that does not exist.
int capsroute_dynamic_forward(const capsroute::Geometry* g, const capsroute::Inputs* in, const capsroute::Outputs* out) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::forward(shape, *g, *in, *out); });
  return 0;
}

int capsroute_dynamic_backward(const capsroute::Geometry* g, const capsroute::Inputs* in, const capsroute::Outputs* out,
                               const capsroute::Gradients* grads) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::backward(shape, *g, *in, *out, *grads); });
  return 0;
}
}
