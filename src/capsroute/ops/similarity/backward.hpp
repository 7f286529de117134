// Similarity routing backward. README.md derives each line; the names are those of its table.
#pragma once

#include "workspace.hpp"

namespace capsroute {
namespace {

// What a thread sums over its images for one output type; in double, since these sums run over all votes.
struct ParameterSums {
  double lambda1 = 0, lambda2 = 0, beta1 = 0, beta2 = 0, beta3 = 0;
};

// The sums of one thread: packed weight and offset gradients, and those of the parameters.
struct ThreadSums {
  float *weight, *offset;
  ParameterSums* parameters;     // [J]
  double *heights, *precisions;  // [J][Q]
};

// From the gradients of k(mu_t, v_i) to that of mu_t: sum of pull_i (v_i - mu_t), added to `start` unless that is null.
template <class Shape>
CAPSROUTE_PASS void pull_mean(Shape shape, int blocks, const Workspace& w, int t, float total, const float* start) {
  float* grad_mu = w.grad_mu + t * shape.out;
  const float* mu = w.mu[t];
  weighted_sum(shape.out, blocks, w.pull + t * w.lanes, w.votes, grad_mu);
  for (int d = 0; d < shape.out; ++d) grad_mu[d] += (start ? start[d] : 0.0f) - total * mu[d];
}

// Through the agreement in the logit: sum of c k(mu_T, v).
template <class Shape>
CAPSROUTE_PASS void agreement_backward(Shape shape, int blocks, const Workspace& w, float grad_agreement,
                                       const float* grad_pose) {
  const int row = w.iterations * w.lanes;
  const float *coupling = w.coupling + row, factor = grad_agreement * w.inverse[w.iterations];
  float *all_grad = w.grad + row, *all_pull = w.pull + row, *pull_total = w.pull_total;
  Vec total = {};
  sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto grad = load<n>(coupling + b * kLanes) * factor;
    const auto pull = grad * load<n>(all_pull + b * kLanes) * 2.0f;
    store(all_grad + b * kLanes, grad);
    store(all_pull + b * kLanes, pull);
    store(pull_total + b * kLanes, pull);
    total += pull.total();
  });
  pull_mean(shape, blocks, w, w.iterations, sum(total), grad_pose);
}

// c_i dL/dc_i for the couplings of iteration t, but for their factor, and the sum with it. The sum must be that of
// these very numbers, or its rounding would not cancel in what follows; hence a pass of its own.
template <class Shape>
CAPSROUTE_PASS float coupling_backward(Shape shape, int blocks, const Window& window, const Workspace& w, int t,
                                       float to_k, float to_kl) {
  const float *votes = w.votes, *grad_mu = w.grad_mu + t * shape.out, *coupling = w.coupling + t * w.lanes;
  const float *similarity = w.similarity + t * w.lanes, *score = w.score, *log_a = window.log_activations;
  float* out = w.grad_coupling;
  const bool in_logit = t == w.iterations;  // of all couplings, the last alone enter the logit
  Vec total = {};
  sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    auto grad = dot<n>(shape.out, votes + b * shape.out * kLanes, grad_mu);
    if (in_logit) {
      const auto log_ratio = load<n>(score + b * kLanes) * kLn2 - load<n>(log_a + b * kLanes);
      grad = grad + load<n>(similarity + b * kLanes) * to_k - log_ratio * to_kl;
    }
    const auto weighted = load<n>(coupling + b * kLanes) * grad;
    store(out + b * kLanes, weighted);
    total += weighted.total();
  });
  return sum(total) * w.inverse[t];
}

// Through the softmax and the scores of iteration t, to k(mu_(t-1), v), log a and the lambdas.
template <class Shape>
CAPSROUTE_PASS void iteration_backward(Shape shape, int blocks, const Kernel& kernel, const Window& window,
                                       const Workspace& w, int t, float to_k, float to_kl, float* grad_log_a,
                                       ParameterSums& sums) {
  const float centre = coupling_backward(shape, blocks, window, w, t, to_k, to_kl);
  const float cooling = kernel.cooling, lambda2 = kernel.lambda2, factor = cooling * w.inverse[t];
  const float kl = t == w.iterations ? to_kl * w.inverse[t] : 0.0f;
  const float *coupling = w.coupling + t * w.lanes, *weighted = w.grad_coupling, *log_a = window.log_activations;
  const float* similarity = w.similarity + (t - 1) * w.lanes;
  float *all_grad = w.grad + (t - 1) * w.lanes, *all_pull = w.pull + (t - 1) * w.lanes, *pull_total = w.pull_total;
  Vec parts[4] = {};  // sums of pull, of gradient times log a, and of gradient times k
  sweep<2>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    const auto a = load<n>(log_a + b * kLanes), c = load<n>(coupling + b * kLanes);
    const auto grad = (load<n>(weighted + b * kLanes) - c * centre) * factor;
    const auto pull = grad * load<n>(all_pull + b * kLanes) * 2.0f;
    parts[0] += pull.total();
    parts[1] += (grad * a).total();
    parts[2] += (grad * load<n>(similarity + b * kLanes)).total();
    store(all_grad + b * kLanes, grad);
    store(all_pull + b * kLanes, pull);
    store(pull_total + b * kLanes, load<n>(pull_total + b * kLanes) + pull);
    store(grad_log_a + b * kLanes, load<n>(grad_log_a + b * kLanes) + grad * lambda2 + c * kl);
  });
  float totals[4];
  sums_of_four(parts, totals);
  const float by_score = (totals[1] * lambda2 + totals[2]) * cooling;
  sums.lambda1 -= by_score;
  sums.lambda2 += totals[1] - by_score;
  pull_mean(shape, blocks, w, t - 1, totals[0], nullptr);
}

// heights[q] += sum of grad e_q and precisions[q] += sum of grad distance e_q, over inputs and iterations.
template <int kCount>
CAPSROUTE_PASS void kernel_backward(int blocks, const Workspace& w, int q, double* heights, double* precisions) {
  Vec plain[4] = {}, scaled[4] = {};
  for (int t = 0; t <= w.iterations; ++t) {
    const float *all_grad = w.grad + t * w.lanes, *distance = w.distance + t * w.lanes;
    const float* parts = w.parts + (t * w.components + q) * w.lanes;
    for (int b = 0; b < blocks; ++b) {
      const Vec grad = load_once(all_grad + b * kLanes), far = grad * load(distance + b * kLanes);
      for (int k = 0; k < kCount; ++k) {
        const Vec e = load_once(parts + (k * blocks + b) * kLanes);
        plain[k] += grad * e;
        scaled[k] += far * e;
      }
    }
  }
  float sums[4], far_sums[4];
  sums_of_four(plain, sums);
  sums_of_four(scaled, far_sums);
  for (int k = 0; k < kCount; ++k) {
    heights[q + k] += sums[k];
    precisions[q + k] += far_sums[k];
  }
}

// dv_i[d] of N blocks for kCount numbers of the vote: what pulls it towards the means, and what the couplings pass on.
// Padding gets numbers too: its poses are zero, so they reach no weight, and nobody reads the gradient of its pose.
template <int N, int kCount>
CAPSROUTE_INLINE void vote_gradient(const Workspace& w, const Term* terms, int count, int size, int b, int d) {
  Pack<N> acc[kCount];
  combine(terms, count, b, d, acc);
  const Pack<N> all = load_once<N>(w.pull_total + b * kLanes);
  const float *votes = w.votes + (b * size + d) * kLanes, *flat = w.share + d;
  for (int k = 0; k < kCount; ++k) acc[k] = acc[k] - all * load<N>(votes + k * kLanes, size);
  for (int k = 0; k < kCount; ++k) store(w.grad_votes + (d + k) * kLanes, acc[k] + flat[k], size);
}

template <class Shape>
CAPSROUTE_PASS void votes_to_inputs(Shape shape, int blocks, const Window& window, const Workspace& w,
                                    const float* weight, float* grad_weight, float* grad_window, float* grad_offset) {
  for (int t = 0; t <= w.iterations; ++t)
    for (int d = 0; d < shape.out; ++d) w.share[t * shape.out + d] = w.grad_mu[t * shape.out + d] * w.inverse[t];
  const Term* terms = w.terms.data();
  const int count = static_cast<int>(w.terms.size());
  sweep<3>(blocks, [&](int b, auto n) __attribute__((always_inline)) {
    int d = 0;
    for (; d + 4 <= shape.out; d += 4) vote_gradient<n, 4>(w, terms, count, shape.out, b, d);
    for (; d < shape.out; ++d) vote_gradient<n, 1>(w, terms, count, shape.out, b, d);
    votes_backward(shape, n, weight + b * shape.weight * kLanes, window.poses + b * shape.in * kLanes, w.grad_votes,
                   grad_weight + b * shape.weight * kLanes, grad_window + b * shape.in * kLanes, nullptr);
    if (!grad_offset) return;
    const auto mask = load<n>(window.mask + b * kLanes);
    for (d = 0; d < shape.out; ++d) {
      float* at = grad_offset + (b * shape.out + d) * kLanes;
      store(at, load<n>(at, shape.out) + load<n>(w.grad_votes + d * kLanes, shape.out) * mask, shape.out);
    }
  });
}

template <class Shape>
void backward_output(Shape shape, const Geometry& g, const Inputs& in, const Kernel& kernel, int64_t j,
                     const Window& window, Matrices& matrices, const float* grad_pose, float grad_logit, Workspace& w,
                     float* grad_window, float* grad_log_a, ThreadSums& sums) {
  const int blocks = g.blocks();
  votes(shape, blocks, matrices.weight(j), window.poses, matrices.offset(), w.votes);
  const LogitTerms terms = recompute(shape, blocks, kernel, window, w);
  const float to_k = grad_logit * in.beta1[j], to_kl = grad_logit * in.beta2[j];
  ParameterSums& own = sums.parameters[j];
  own.beta1 += static_cast<double>(grad_logit) * terms.agreement;
  own.beta2 -= static_cast<double>(grad_logit) * terms.divergence;
  own.beta3 += grad_logit;
  agreement_backward(shape, blocks, w, to_k, grad_pose);
  if (w.iterations == 0)  // flat couplings depend on nothing, so log a enters through the divergence alone
    for (int i = 0; i < w.lanes; ++i) grad_log_a[i] += to_kl * window.flat[i];
  for (int t = w.iterations; t > 0; --t)
    iteration_backward(shape, blocks, kernel, window, w, t, to_k, to_kl, grad_log_a, own);
  double *heights = sums.heights + j * in.components, *precisions = sums.precisions + j * in.components;
  int q = 0;
  for (; q + 4 <= w.components; q += 4) kernel_backward<4>(blocks, w, q, heights, precisions);
  for (; q < w.components; ++q) kernel_backward<1>(blocks, w, q, heights, precisions);
  votes_to_inputs(shape, blocks, window, w, matrices.weight(j), sums.weight + j * matrices.size, grad_window,
                  sums.offset);
}

// Adds up the threads' shares in their order, and goes from precisions 1 / (2 width^2) to widths.
void write_parameters(const Geometry& g, const Inputs& in, const Gradients& grad,
                      const std::vector<ParameterSums>& parameters, const std::vector<double>& kernels) {
  const int64_t parts = static_cast<int64_t>(parameters.size()) / g.outputs, each = g.outputs * in.components;
  for (int64_t j = 0; j < g.outputs; ++j) {
    ParameterSums all;
    for (int64_t part = 0; part < parts; ++part) {
      const ParameterSums& share = parameters[part * g.outputs + j];
      all.lambda1 += share.lambda1;
      all.lambda2 += share.lambda2;
      all.beta1 += share.beta1;
      all.beta2 += share.beta2;
      all.beta3 += share.beta3;
    }
    grad.lambda1[j] = static_cast<float>(all.lambda1);
    grad.lambda2[j] = static_cast<float>(all.lambda2);
    grad.beta1[j] = static_cast<float>(all.beta1);
    grad.beta2[j] = static_cast<float>(all.beta2);
    grad.beta3[j] = static_cast<float>(all.beta3);
  }
  const int64_t count = in.kernels * in.components;
  for (int64_t k = 0; k < count; ++k) {
    double height = 0, precision = 0;
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t at = k; at < each; at += count) {
        height += kernels[2 * part * each + at];
        precision += kernels[(2 * part + 1) * each + at];
      }
    const double width = in.widths[k];
    grad.heights[k] = static_cast<float>(height);
    grad.widths[k] = static_cast<float>(precision * in.heights[k] / (width * width * width));
  }
}

// All windows of one image, which one thread owns: its input gradients are summed where they belong.
template <class Shape>
void backward_image(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grad,
                    const Kernels& kernels, Matrices& matrices, int64_t image, Window& window, Workspace& w,
                    float* grad_window, float* grad_log_a, ThreadSums& sums) {
  float *in_poses = grad.in_poses + image * g.inputs * shape.in, *in_log_a = grad.in_log_activations + image * g.inputs;
  std::fill_n(in_poses, g.inputs * shape.in, 0.0f);
  std::fill_n(in_log_a, g.inputs, 0.0f);
  for (int64_t position = 0; position < g.positions; ++position) {
    window.read(g, in, image, position);
    std::fill_n(grad_window, g.lanes() * shape.in, 0.0f);
    std::fill_n(grad_log_a, g.lanes(), 0.0f);
    for (int64_t j = 0; j < g.outputs; ++j) {
      const int64_t o = (image * g.positions + position) * g.outputs + j;
      if (window.voters == 0) {
        sums.parameters[j].beta3 += grad.logits[o];
        continue;
      }
      w.follow(out.trail + o * w.iterations * shape.out, out.poses + o * shape.out, shape.out);
      backward_output(shape, g, in, kernels.of(j), j, window, matrices, grad.poses + o * shape.out, grad.logits[o], w,
                      grad_window, grad_log_a, sums);
    }
    const int32_t* index = in.index + position * g.window;
    scatter_add(g, index, grad_window, shape.in, in_poses);
    scatter_add(g, index, grad_log_a, 1, in_log_a);
  }
}

template <class Shape>
void backward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grad) {
  Matrices matrices(g, in);
  const Kernels kernels(g, in);
  const int64_t parts = std::max<int64_t>(1, std::min(g.threads, g.batch)), each = g.outputs * in.components;
  const int64_t weight_size = g.outputs * matrices.size, offset_size = in.offset ? g.lanes() * g.out() : 0;
  Buffer grad_weight(parts * weight_size), grad_offset(parts * offset_size);
  std::vector<ParameterSums> parameters(parts * g.outputs);
  std::vector<double> kernel_sums(parts * 2 * each);
  parallel(parts, g.batch, [&](int64_t part, int64_t begin, int64_t end) {
    Arena arena;
    Window window(g, arena);
    Workspace w(g, in, arena);
    float *grad_window = arena.take(g.lanes() * g.in()), *grad_log_a = arena.take(g.lanes());
    double* own = kernel_sums.data() + part * 2 * each;
    ThreadSums sums{grad_weight.get() + part * weight_size,
                    in.offset ? grad_offset.get() + part * offset_size : nullptr, parameters.data() + part * g.outputs,
                    own, own + each};
    for (int64_t image = begin; image < end; ++image)
      backward_image(shape, g, in, out, grad, kernels, matrices, image, window, w, grad_window, grad_log_a, sums);
  });
  unpack_sum(g, grad_weight.get(), parts, weight_size, g.outputs, g.weight(), grad.weight);
  if (in.offset) unpack_sum(g, grad_offset.get(), parts, offset_size, 1, g.out(), grad.offset);
  write_parameters(g, in, grad, parameters, kernel_sums);
}

}  // namespace
}  // namespace capsroute
