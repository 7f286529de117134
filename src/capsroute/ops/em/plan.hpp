// What a call of EM routing reads, and its windows in lanes.
#pragma once

#include <limits>

#include "passes.hpp"

namespace capsroute {
namespace {

// Of variational routing: the Dirichlet, the Gaussian and the Wishart distribution that every capsule starts from.
struct Prior {
  float alpha, kappa, scatter, degrees;
};

// One call's tensors; all contiguous, in the shapes of op.py.
struct Inputs {
  const float *poses, *logits, *weight, *offset;
  const int32_t* index;
  const float *beta_use, *beta_activate;
  const float* constants;  // the least variance, then the inverse temperature of each M-step
  int64_t steps;           // T, M-steps
  int64_t parents;         // 1: a child's couplings compete over all its parents; 0: over the types of each window
  const Prior* prior;      // null for EM
};

struct Outputs {
  float *poses, *logits;
  float* trail;   // [B, P, J, T, 2 D + 3], with a prior 4 D + 3: the moments of each M-step
  float* shares;  // [B, T - 1, P, 2, I]: of each E-step's softmax, the shift and the inverse sum for each input
};

struct Gradients {
  const float *poses, *logits;  // of the outputs
  float *in_poses, *in_logits, *weight, *offset, *beta_use, *beta_activate;
};

// What all threads of a call read.
struct Plan {
  const Geometry& g;
  const Inputs& in;
  const Outputs& out;
  int64_t group;  // how many positions compete with each other: all of an image, or each by itself
  int64_t edges;  // floats of a row for each output capsule of a group
  Buffer weight, offset;
  std::vector<float> flat;  // [N]: the coupling of each input before the first M-step

  Plan(const Geometry& g, const Inputs& in, const Outputs& out)
      : g(g),
        in(in),
        out(out),
        group(in.parents ? g.positions : 1),
        edges(group * g.outputs * g.lanes()),
        weight(g.outputs * g.lanes() * g.weight()),
        offset(in.offset ? g.lanes() * g.out() : 0),
        flat(g.inputs, 0.0f) {
    pack(g, in.weight, g.outputs, g.weight(), weight.get());
    if (in.offset) pack(g, in.offset, 1, g.out(), offset.get());
    for (int64_t k = 0; k < g.positions * g.window; ++k)
      if (in.index[k] >= 0) flat[in.index[k]] += 1.0f;
    for (float& x : flat) x = 1.0f / (g.outputs * (in.parents ? std::max(x, 1.0f) : 1.0f));
  }

  float least_variance() const { return in.constants[0]; }
  float scale(int64_t t) const { return in.constants[1 + t]; }
  float cost(int64_t j, const Moments& m) const { return g.out() * in.beta_use[j] + *m.spread; }
  float logit(int64_t t, int64_t j, const Moments& m) const {
    return scale(t) * (in.beta_activate[j] - *m.mass * cost(j, m));
  }

  const int32_t* index(int64_t position) const { return in.index + position * g.window; }
  int64_t output(int64_t image, int64_t position, int64_t j) const {
    return (image * g.positions + position) * g.outputs + j;
  }
  Moments moments(int64_t output, int64_t t) const {
    return Moments(out.trail + (output * in.steps + t) * Moments::floats(g.out(), in.prior), g.out(), in.prior);
  }
  float* shares(int64_t image, int64_t t, int64_t position) const {
    return out.shares + ((image * (in.steps - 1) + t) * g.positions + position) * 2 * g.window;
  }

  // body(child, place in rows [P][lanes]) for every input of every position.
  template <class Body>
  void each_edge(Body body) const {
    for (int64_t p = 0; p < g.positions; ++p)
      for (int64_t i = 0; i < g.window; ++i)
        if (index(p)[i] >= 0) body(index(p)[i], p * g.lanes() + i);
  }

  const float* weights(int64_t j) { return weight.get() + j * g.lanes() * g.weight(); }
  template <class Shape>
  void cast(Shape shape, int64_t j, const float* window, float* to) {
    votes(shape, g.blocks(), weights(j), window, in.offset ? offset.get() : nullptr, to);
  }
};

// The inputs of a group of positions, in lanes, and the votes for one output capsule.
class Windows {
 public:
  explicit Windows(const Plan& plan)
      : votes(plan.g.lanes() * plan.g.out()),
        plan_(plan),
        of_input_(2 * plan.g.inputs),
        poses_(plan.group * plan.g.lanes() * plan.g.in()),
        activations_(plan.group * plan.g.lanes()),
        flat_(plan.group * plan.g.lanes()) {}

  void enter(int64_t image) {
    const int64_t inputs = plan_.g.inputs;
    image_ = image;
    for (int64_t n = 0; n < inputs; ++n) {
      activation(n) = sigmoid(plan_.in.logits[image * inputs + n]);
      of_input_.get()[inputs + n] = activation(n) * plan_.flat[n];
    }
  }
  void read(int64_t first) {
    const Geometry& g = plan_.g;
    for (int64_t p = 0; p < plan_.group; ++p) {
      const int32_t* index = plan_.index(first + p);
      gather(g, index, plan_.in.poses + image_ * g.inputs * g.in(), static_cast<int>(g.in()), poses(p));
      gather(g, index, of_input_.get(), 1, activations(p));
      gather(g, index, of_input_.get() + g.inputs, 1, flat(p));
    }
  }

  float& activation(int64_t n) { return of_input_.get()[n]; }
  float* poses(int64_t p) { return poses_.get() + p * plan_.g.lanes() * plan_.g.in(); }
  float* activations(int64_t p) { return activations_.get() + p * plan_.g.lanes(); }  // zero at padding
  float* flat(int64_t p) { return flat_.get() + p * plan_.g.lanes(); }  // weights before the first M-step

  Buffer votes;

 private:
  const Plan& plan_;
  int64_t image_ = 0;
  Buffer of_input_;  // [N] activations, then [N] weights before the first M-step
  Buffer poses_, activations_, flat_;
};

// What makes weights sum to one; a capsule that nobody couples to has none.
inline float inverse_mass(float mass) { return mass < std::numeric_limits<float>::min() ? 0.0f : 1.0f / mass; }

}  // namespace
}  // namespace capsroute
