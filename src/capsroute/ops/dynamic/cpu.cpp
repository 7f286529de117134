// Dynamic and entropy routing, forward and backward, without ever storing a vote of more than one window.
//
// Output types compete within a window, so one window at a time is routed from its first couplings to its last. Scores are
// v . target, in base 2, where the target of an output capsule is all that tells the two routings apart. README.md derives
// what is computed here.
#include "common.hpp"
#include "competition.hpp"

namespace capsroute {
namespace {

// One call's tensors; all contiguous, in the shapes of op.py.
struct Inputs {
  const float *poses, *weight, *offset;
  const int32_t* index;
  const float* sharpness;  // [1]: what scores are multiplied by
  int64_t iterations;      // T, how often capsules are formed
  int64_t unit;            // 1: scores are agreements with the pose's direction; 0: with the sum of all poses so far
};

struct Outputs {
  float *poses, *logits;
  float* trail;  // [B, P, J, T, D]: the sums that were squashed
};

struct Gradients {
  const float *poses, *logits;  // of the outputs
  float *in_poses, *weight, *offset;
};

constexpr float kTiny = 1e-12f;  // keeps the slope of a length finite at zero; the same as in routing/dynamic.py

float inner(int size, const float* a, const float* b) {
  float total = 0.0f;
  for (int d = 0; d < size; ++d) total += a[d] * b[d];
  return total;
}

// pose = shrink * sum, where |pose| = |sum|^2 / (1 + |sum|^2).
struct Squash {
  float squared, length, shrink;

  Squash(int size, const float* sum) : squared(inner(size, sum, sum)) {
    length = std::sqrt(squared + kTiny);
    shrink = length / (1.0f + squared);
  }
  // From the gradients of pose and logit to that of the sum; in place.
  void backward(int size, const float* sum, float grad_logit, float* grad) const {
    const float slope = (1.0f - squared - 2.0f * kTiny) / (2.0f * length * (1.0f + squared)) / (1.0f + squared);
    const float along = 2.0f * (slope * inner(size, grad, sum) + grad_logit / (squared + kTiny));
    for (int d = 0; d < size; ++d) grad[d] = shrink * grad[d] + along * sum[d];
  }
};

// What votes are compared with: pose, or its direction.
struct Target {
  const Squash squash;
  float scale;  // target = scale * sum

  Target(int size, const float* sum, bool unit) : squash(size, sum), scale(squash.shrink) {
    if (unit) scale = squash.shrink / pose_length();
  }
  float pose_length() const { return std::sqrt(squash.squared * squash.shrink * squash.shrink + kTiny); }
  // From the gradient of the target to that of the sum; in place.
  void backward(int size, const float* sum, bool unit, float* grad) const {
    if (unit) {
      const float along = scale * scale * inner(size, grad, sum), inverse = 1.0f / pose_length();
      for (int d = 0; d < size; ++d) grad[d] = inverse * (grad[d] - along * sum[d]);
    }
    squash.backward(size, sum, 0.0f, grad);
  }
};

// What all threads of a call read.
struct Plan {
  const Geometry& g;
  const Inputs& in;
  const Outputs& out;
  Buffer weight, offset;

  Plan(const Geometry& g, const Inputs& in, const Outputs& out)
      : g(g), in(in), out(out), weight(g.outputs * g.lanes() * g.weight()), offset(in.offset ? g.lanes() * g.out() : 0) {
    pack(g, in.weight, g.outputs, g.weight(), weight.get());
    if (in.offset) pack(g, in.offset, 1, g.out(), offset.get());
  }
  const float* weights(int64_t j) { return weight.get() + j * g.lanes() * g.weight(); }
  // The sum of output capsule j of `window` (image and position) at iteration t.
  float* sums(int64_t window, int64_t j, int64_t t) const {
    return out.trail + ((window * g.outputs + j) * in.iterations + t) * g.out();
  }
};

// Votes of a window that are worth keeping until the window is done: as many as leave room in a second-level cache.
constexpr int64_t kKeptFloats = 48 * 1024;

// One window in lanes, and its votes.
class Window {
 public:
  explicit Window(Plan& plan)
      : flat(plan.g.lanes()),
        mask(plan.g.lanes()),
        poses(plan.g.lanes() * plan.g.in()),
        plan_(plan),
        size_(plan.g.lanes() * plan.g.out()),
        keep_(plan.g.outputs * size_ <= kKeptFloats),
        votes_(keep_ ? plan.g.outputs * size_ : size_) {}

  void read(int64_t image, int64_t position) {
    const Geometry& g = plan_.g;
    const int32_t* index = plan_.in.index + position * g.window;
    window_mask(g, index, mask.get());
    for (int i = 0; i < g.lanes(); ++i) flat.get()[i] = mask.get()[i] / g.outputs;
    gather(g, index, plan_.in.poses + image * g.inputs * g.in(), static_cast<int>(g.in()), poses.get());
    cast_ = 0;
  }

  // The votes for output type j, valid until another type is asked for; types are asked for in rounds from 0 to J - 1.
  template <class Shape>
  const float* votes(Shape shape, int64_t j) {
    float* to = votes_.get() + (keep_ ? j * size_ : 0);
    if (keep_ && j < cast_) return to;
    capsroute::votes(shape, plan_.g.blocks(), plan_.weights(j), poses.get(), plan_.in.offset ? plan_.offset.get() : nullptr, to);
    cast_ = j + 1;
    return to;
  }

  Buffer flat, mask, poses;  // flat: the coupling of a voter before the first iteration

 private:
  Plan& plan_;
  int64_t size_;
  bool keep_;
  Buffer votes_;
  int64_t cast_ = 0;
};

// Scores [J][lanes] become couplings, in place.
void couple(const Geometry& g, Window& window, float* rows, float* peak, float* total) {
  const int lanes = g.lanes();
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
void forward_window(Shape shape, Plan& plan, int64_t at, Window& window, float* rows, float* scratch) {
  const Geometry& g = plan.g;
  const int lanes = g.lanes();
  float *peak = scratch, *total = peak + lanes, *targets = total + lanes;
  const float gain = plan.in.sharpness[0] * kLog2E;
  std::fill_n(targets, g.outputs * shape.out, 0.0f);
  for (int64_t t = 0; t < plan.in.iterations; ++t) {
    const bool last = t + 1 == plan.in.iterations;
    for (int64_t j = 0; j < g.outputs; ++j) {
      const float* votes = window.votes(shape, j);
      float *sum = plan.sums(at, j, t), *target = targets + j * shape.out;
      weighted_sum(shape.out, g.blocks(), t ? rows + j * lanes : window.flat.get(), votes, sum);
      if (last) {
        const Squash squash(shape.out, sum);
        float* pose = plan.out.poses + (at * g.outputs + j) * shape.out;
        for (int d = 0; d < shape.out; ++d) pose[d] = squash.shrink * sum[d];
        plan.out.logits[at * g.outputs + j] = std::log(squash.squared + kTiny);
        continue;
      }
      const float scale = gain * Target(shape.out, sum, plan.in.unit).scale;
      for (int d = 0; d < shape.out; ++d) target[d] = (plan.in.unit ? 0.0f : target[d]) + scale * sum[d];
      dot_row(shape, g.blocks(), votes, target, rows + j * lanes);
    }
    if (!last) couple(g, window, rows, peak, total);
  }
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  Plan plan(g, in, out);
  parallel(g.threads, g.batch * g.positions, [&](int64_t, int64_t begin, int64_t end) {
    Window window(plan);
    Buffer rows(g.outputs * g.lanes()), scratch(2 * g.lanes() + g.outputs * g.out());
    for (int64_t at = begin; at < end; ++at) {
      window.read(at / g.positions, at % g.positions);
      forward_window(shape, plan, at, window, rows.get(), scratch.get());
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
  Buffer grad_votes, grad_window, scratch;
  float *grad_weight, *grad_offset;  // the thread's

  Workspace(const Plan& plan, float* grad_weight, float* grad_offset)
      : plan(plan),
        couplings(plan.in.iterations * rows()),
        grad_scores((plan.in.iterations - 1) * rows()),
        worths(rows()),
        targets((plan.in.iterations - 1) * vectors()),
        grad_sums(plan.in.iterations * vectors()),
        grad_votes(kLanes * plan.g.out()),
        grad_window(plan.g.lanes() * plan.g.in()),
        scratch(2 * plan.g.lanes() + plan.g.out()),
        grad_weight(grad_weight),
        grad_offset(grad_offset) {}

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
  const float sharpness = plan.in.sharpness[0];
  float *peak = w.scratch.get(), *total = peak + g.lanes(), *so_far = total + g.lanes();
  for (int64_t j = 0; j < g.outputs; ++j) {
    const float* votes = window.votes(shape, j);
    const int64_t o = at * g.outputs + j;
    float* grad = w.vector(w.grad_sums, last, j);
    std::copy_n(grads.poses + o * shape.out, shape.out, grad);
    Squash(shape.out, plan.sums(at, j, last)).backward(shape.out, plan.sums(at, j, last), grads.logits[o], grad);
    if (last) dot_row(shape, g.blocks(), votes, grad, w.row(w.worths, 0, j));
    std::fill_n(so_far, shape.out, 0.0f);
    std::copy_n(window.flat.get(), g.lanes(), w.row(w.couplings, 0, j));
    for (int64_t t = 0; t < last; ++t) {
      const float *sum = plan.sums(at, j, t), scale = sharpness * Target(shape.out, sum, plan.in.unit).scale;
      float* target = w.vector(w.targets, t, j);
      for (int d = 0; d < shape.out; ++d) {
        target[d] = scale * sum[d];
        so_far[d] = (plan.in.unit ? 0.0f : so_far[d]) + kLog2E * target[d];
      }
      dot_row(shape, g.blocks(), votes, so_far, w.row(w.couplings, t + 1, j));
    }
  }
  for (int64_t t = 1; t <= last; ++t) couple(g, window, w.row(w.couplings, t, 0), peak, total);
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

// dv_i[d] for kCount numbers of the votes of one block: through the sum and through the score of each iteration.
template <int kCount>
CAPSROUTE_INLINE void vote_gradient(int64_t j, int block, int d, Workspace& w) {
  const int64_t last = w.plan.in.iterations - 1;
  Vec acc[kCount];
  const Vec c = load(w.row(w.couplings, last, j) + block * kLanes);
  const float* grad_sum = w.vector(w.grad_sums, last, j) + d;
  for (int k = 0; k < kCount; ++k) acc[k] = c * grad_sum[k];
  for (int64_t t = 0; t < last; ++t) {
    const Vec c = load(w.row(w.couplings, t, j) + block * kLanes), score = load(w.row(w.grad_scores, t, j) + block * kLanes);
    const float *grad_sum = w.vector(w.grad_sums, t, j) + d, *target = w.vector(w.targets, t, j) + d;
    for (int k = 0; k < kCount; ++k) acc[k] += c * grad_sum[k] + score * target[k];
  }
  for (int k = 0; k < kCount; ++k) store(w.grad_votes.get() + (d + k) * kLanes, acc[k]);
}

template <class Shape>
void votes_backward(Shape shape, Plan& plan, int64_t j, Window& window, Workspace& w) {
  float* grad_weight = w.grad_weight + j * plan.g.lanes() * shape.weight;
  for (int b = 0; b < plan.g.blocks(); ++b) {
    sweep<4>(shape.out, [&](int d, auto n) __attribute__((always_inline)) { vote_gradient<n>(j, b, d, w); });
    votes_backward_block(shape, plan.weights(j) + b * shape.weight * kLanes, window.poses.get() + b * shape.in * kLanes,
                         w.grad_votes.get(), grad_weight + b * shape.weight * kLanes,
                         w.grad_window.get() + b * shape.in * kLanes,
                         w.grad_offset ? w.grad_offset + b * shape.out * kLanes : nullptr);
  }
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
      for (int d = 0; d < shape.out; ++d) grad[d] *= plan.in.sharpness[0];
      Target(shape.out, sum, plan.in.unit).backward(shape.out, sum, plan.in.unit, grad);
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
