// What a call of dynamic or entropy routing reads: sums, what becomes of them, and one window in lanes.
#pragma once

#include "common.hpp"

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
  float* trail;  // [B, P, J, (T - 1) D + 1]: the sums that were squashed, of the last only its squared length
};

struct Gradients {
  const float *poses, *logits;  // of the outputs
  float *in_poses, *weight, *offset;
};

constexpr float kTiny = 1e-12f;  // keeps the slope of a length finite at zero; the same as in routing/dynamic.py

// Four sums, since one would wait for itself.
float inner(int size, const float* a, const float* b) {
  float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
  int d = 0;
  for (; d + 4 <= size; d += 4)
    for (int k = 0; k < 4; ++k) part[k] += a[d + k] * b[d + k];
  for (; d < size; ++d) part[0] += a[d] * b[d];
  return (part[0] + part[1]) + (part[2] + part[3]);
}

// pose = shrink * sum, where |pose| = |sum|^2 / (1 + |sum|^2).
struct Squash {
  float squared, length, shrink;

  Squash(int size, const float* sum) : Squash(inner(size, sum, sum)) {}
  explicit Squash(float squared) : squared(squared) {
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

// What votes are compared with: target = scale * sum, which is the pose, or its direction, times the sharpness.
class Target {
 public:
  Target(int size, const float* sum, bool unit, float sharpness)
      : scale(sharpness), squash_(size, sum), unit_(unit), inverse_(1.0f), sharpness_(sharpness) {
    if (unit) inverse_ = 1.0f / std::sqrt(squash_.squared * squash_.shrink * squash_.shrink + kTiny);
    scale *= squash_.shrink * inverse_;
  }
  // From the gradient of the target to that of the sum; in place.
  void backward(int size, const float* sum, float* grad) const {
    // of the direction u, the gradient of the pose is (g - (g . u) u) / |pose|
    const float direction = unit_ ? squash_.shrink * inverse_ : 0.0f, along = direction * direction * inner(size, grad, sum);
    for (int d = 0; d < size; ++d) grad[d] = sharpness_ * inverse_ * (grad[d] - along * sum[d]);
    squash_.backward(size, sum, 0.0f, grad);
  }

  float scale;

 private:
  Squash squash_;
  bool unit_;
  float inverse_, sharpness_;  // inverse: of the length of the pose, or one
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
  Target target(const float* sum) const { return Target(static_cast<int>(g.out()), sum, in.unit, in.sharpness[0]); }
  // The sum of output capsule j of `window` (image and position) at iteration t; before it was squashed, the last is
  // where its pose is to be.
  float* sums(int64_t window, int64_t j, int64_t t) const {
    return t + 1 < in.iterations ? trail(window, j) + t * g.out() : out.poses + (window * g.outputs + j) * g.out();
  }
  // The squared length of the last sum.
  float& squared(int64_t window, int64_t j) const { return trail(window, j)[(in.iterations - 1) * g.out()]; }

 private:
  float* trail(int64_t window, int64_t j) const {
    return out.trail + (window * g.outputs + j) * ((in.iterations - 1) * g.out() + 1);
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
        peak(plan.g.lanes()),
        total(plan.g.lanes()),
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
  Buffer peak, total;        // of its softmax

 private:
  Plan& plan_;
  int64_t size_;
  bool keep_;
  Buffer votes_;
  int64_t cast_ = 0;
};

}  // namespace
}  // namespace capsroute
