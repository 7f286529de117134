// The tensors of a call, what is prepared of them once, and what is read of them for each window.
#pragma once

#include "cell.hpp"
#include "perceptron.hpp"

namespace capsroute {
namespace {

// One call's tensors; all contiguous, in the shapes of op.py.
struct Inputs {
  const float *poses, *activations, *weight, *offset;
  const int32_t* index;
  const float *weight_ih, *weight_hh, *bias, *score;
  const int64_t* widths;
  int64_t hidden_layers, units, iterations, bfloat16;
};

struct Outputs {
  float *poses, *summary;
  float* trail;  // [B, P, J, T, D]: mu before each iteration
};

struct Gradients {
  const float *poses, *summary;  // of the outputs
  float *in_poses, *in_activations, *weight, *offset;
  float *weight_ih, *weight_hh, *bias, *score;
};

// What a call prepares once: matrices in the layout of lanes.
struct Prepared {
  Pool pool;
  int64_t weight_size;
  float *weight, *offset = nullptr;
  Cell cell;
  Perceptron score;
  AddOuter outer;

  Prepared(const Geometry& g, const Inputs& in)
      : weight_size(g.lanes() * g.weight()),
        weight(pool.take(g.outputs * weight_size)),
        cell(in.weight_ih, in.weight_hh, in.bias, static_cast<int>(in.units), static_cast<int>(g.out()), in.bfloat16,
             pool),
        score(in.score, in.widths, in.hidden_layers, static_cast<int>(in.units), in.bfloat16, pool),
        outer(in.bfloat16 ? add_outer_of_pairs : add_outer<>) {
    pack(g, in.weight, g.outputs, g.weight(), weight);
    if (!in.offset) return;
    offset = pool.take(g.lanes() * g.out());
    pack(g, in.offset, 1, g.out(), offset);
  }
};

// The inputs of one window, in lanes.
struct Window {
  float *poses, *activations, *mask, *flat;  // flat: the coupling before the first iteration
  int voters = 0;

  Window(const Geometry& g, Pool& pool)
      : poses(pool.take(g.lanes() * g.in())),
        activations(pool.take(g.lanes())),
        mask(pool.take(g.lanes())),
        flat(pool.take(g.lanes())) {}

  float flat_coupling() const { return 1.0f / static_cast<float>(std::max(voters, 1)); }

  void read(const Geometry& g, const Inputs& in, int64_t image, int64_t position) {
    const int32_t* index = in.index + position * g.window;
    voters = window_mask(g, index, mask);
    gather(g, index, in.poses + image * g.inputs * g.in(), static_cast<int>(g.in()), poses);
    gather(g, index, in.activations + image * g.inputs, 1, activations);
    for (int i = 0; i < g.lanes(); ++i) flat[i] = mask[i] * flat_coupling();
  }
};

// coupling = the softmax of the voters' scores.
void normalise(int blocks, const float* score, const float* mask, float* coupling) {
  Vec top = splat(-INFINITY), total = {};
  for (int b = 0; b < blocks * kLanes; b += kLanes) top = load(mask + b) > 0.0f ? larger(load(score + b), top) : top;
  const float shift = largest(top);
  for (int b = 0; b < blocks * kLanes; b += kLanes) {
    const Vec e = exact_exp(load(score + b) - shift) * load(mask + b);
    store(coupling + b, e);
    total += e;
  }
  const float inverse = 1.0f / sum(total);
  for (int b = 0; b < blocks * kLanes; b += kLanes) store(coupling + b, load(coupling + b) * inverse);
}

}  // namespace
}  // namespace capsroute
