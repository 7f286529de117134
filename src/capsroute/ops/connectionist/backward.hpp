// The backward pass: one (window, output type) at a time, whose forward pass is recomputed block by block from what forward
// kept of each iteration.
#pragma once

#include "window.hpp"

namespace capsroute {
namespace {

// All that the backward pass of one (window, output type) keeps, iteration by iteration: arrays of [T][blocks][rows].
struct Workspace {
  int64_t blocks;
  float *votes, *projection, *shared, *score;
  float *gates, *cell, *squashed, *state, *activations;           // [T]; gates become their own gradients
  float* coupling;                                                // [T + 1][lanes], the flat one first
  float *deltas, *grad_hidden, *grad_cell, *grad_score, *grad_coupling;
  float *gate_sums, *totals, *mu, *grad_mu, *grad_votes;          // totals: [4U]; grad_mu: [T + 1][D]

  Workspace(const Geometry& g, const Inputs& in, const Prepared& p, Pool& pool) : blocks(g.blocks()) {
    const int64_t lanes = g.lanes(), all = in.iterations * lanes;
    const Cell& c = p.cell;
    votes = pool.take(lanes * c.pose);
    projection = pool.take(lanes * c.gate_stride());
    shared = pool.take(c.gate_row());
    score = pool.take(lanes);
    gates = pool.take(all * c.gate_stride());
    cell = pool.take(all * c.units);
    squashed = pool.take(all * c.units);
    state = pool.take(all * c.rows.count());
    activations = pool.take(all * p.score.rows);
    coupling = pool.take(all + lanes);
    deltas = pool.take(lanes * p.score.rows);
    grad_hidden = pool.take(lanes * padded(c.units));
    grad_cell = pool.take(lanes * c.units);
    grad_score = pool.take(lanes);
    grad_coupling = pool.take(lanes);
    gate_sums = pool.take(c.gates() * kLanes);
    totals = pool.take(c.gate_stride());
    mu = pool.take(c.pose_row());
    grad_mu = pool.take((in.iterations + 1) * c.pose_row() + kStrip);
    grad_votes = pool.take(kGroup * kLanes * padded(c.pose));
    for (int64_t b = 0; b < in.iterations * blocks; ++b) {
      store(state + (b * c.rows.count() + c.rows.ones()) * kLanes, splat(1.0f));
      p.score.write_ones(activations + b * p.score.rows * kLanes);
    }
  }
  // Where block b of iteration t starts in an array that has so many rows for each block.
  float* at(float* array, int64_t t, int64_t b, int64_t rows) const { return array + (t * blocks + b) * rows * kLanes; }
};

// What a thread sums over votes: floats, most of them vectors whose lanes are yet to be added. After every few output
// capsules all is brought to doubles: a float sum over a whole batch would lose digits.
struct Sums {
  static constexpr int kOften = 16;
  int pending = 0;
  int64_t vectors, means, gates;
  float *state, *vote, *score, *mean;  // panels' gradients; mean: [4U][D]
  double* totals;                      // in the same order, then these:
  double *bias, *coupling, *active;    // [4U]

  Sums(const Prepared& p, double* totals) : gates(p.cell.gates()), totals(totals) {
    vectors = gates * (1 + p.cell.units + p.cell.pose) + p.score.gradient_vectors();
    means = gates * p.cell.pose_row();
    bias = totals + vectors + means;
    coupling = bias + gates;
    active = coupling + gates;
  }
  int64_t count() const { return vectors + means + 3 * gates; }

  void take(const Prepared& p, Pool& pool) {
    state = pool.take(vectors * kLanes + means);
    vote = state + gates * (1 + p.cell.units) * kLanes;
    score = vote + gates * p.cell.pose * kLanes;
    mean = state + vectors * kLanes;
  }
  void flush() {
    for (int64_t k = 0; k < vectors; k += 4) {  // panels have strips of four
      Vec four[4];
      float lanes[4];
      for (int r = 0; r < 4; ++r) four[r] = load(state + (k + r) * kLanes);
      sums_of_four(four, lanes);
      for (int r = 0; r < 4; ++r) totals[k + r] += lanes[r];
    }
    for (int64_t k = 0; k < means; ++k) totals[vectors + k] += mean[k];
    std::fill_n(state, vectors * kLanes + means, 0.0f);
    pending = 0;
  }
  void counted() {
    if (++pending == kOften) flush();
  }
};

// One update of a few blocks, as in the forward pass, with all that leads back.
template <int N, bool kFirst>
void recompute_update(const Prepared& p, const Window& window, int64_t t, int b, Workspace& w) {
  const Cell& cell = p.cell;
  const int rows = cell.rows.count(), units = cell.units, stride = cell.gate_stride();
  float *gates = w.at(w.gates, t, b, stride), *state = w.at(w.state, t, b, rows);
  float *cells = w.at(w.cell, t, b, units), *squashed = w.at(w.squashed, t, b, units);
  const float* before = kFirst ? nullptr : w.at(w.cell, t - 1, b, units);
  float* projection = w.at(w.projection, 0, b, stride);
  if constexpr (kFirst) cell.project<N>(w.at(w.votes, 0, b, cell.pose), window.activations + b * kLanes, projection);
  cell.exponents<N, kFirst>(projection, w.shared, kFirst ? nullptr : w.at(w.state, t - 1, b, rows), gates);
  for (int u = 0; u < units; ++u) {
    Tile<N> unit;
    load_gates<N>(gates + 4 * u * kLanes, stride, unit);
    const Pack<N> from = kFirst ? zeros<N>() : load<N>(before + u * kLanes, units);
    store(cells + u * kLanes, next_cell_and_gates<kFirst>(unit, from), units);
    for (int r = 0; r < 3; ++r) store(gates + (4 * u + r) * kLanes, unit[r], stride);
  }
  for (int u = 0; u < units; ++u) {
    Pack<N> gate = load<N>(gates + (4 * u + 3) * kLanes, stride);
    const Pack<N> seen = squash_and_open(gate, load<N>(cells + u * kLanes, units));
    store(gates + (4 * u + 3) * kLanes, gate, stride);
    store(squashed + u * kLanes, seen, units);
    store(state + (StateRows::hidden + u) * kLanes, gate * seen, rows);
  }
  store(w.score + b * kLanes,
        p.score.score<N>(state + StateRows::hidden * kLanes, rows, w.at(w.activations, t, b, p.score.rows)));
}

// All iterations again, from the means that forward kept. Couplings are normalised anew: forward's own sums would not fit
// scores that differ in their last digits, and where scores are large that grows from iteration to iteration.
void recompute(const Geometry& g, const Inputs& in, const Prepared& p, const Window& window, const float* trail,
               Workspace& w) {
  std::copy_n(window.flat, g.lanes(), w.coupling);
  for (int64_t t = 0; t < in.iterations; ++t) {
    p.cell.share(trail + t * p.cell.pose, t ? 0.0f : window.flat_coupling(), w.shared);
    if (t == 0)
      in_groups(g.blocks(), [&](int b, auto n) { recompute_update<n, true>(p, window, t, b, w); });
    else
      in_groups(g.blocks(), [&](int b, auto n) { recompute_update<n, false>(p, window, t, b, w); });
    float* coupling = w.at(w.coupling, t + 1, 0, 1);
    normalise(g.blocks(), w.score, window.mask, coupling);
    p.cell.write_coupling(g.blocks(), coupling, w.at(w.state, t, 0, p.cell.rows.count()));
  }
}

// The gradients that reach the last states and couplings from the summary.
void summary_backward(const Geometry& g, const Inputs& in, const Prepared& p, const float* grad_summary, Workspace& w) {
  const int units = p.cell.units;
  std::fill_n(w.grad_hidden, g.lanes() * padded(units), 0.0f);
  for (int b = 0; b < g.blocks(); ++b) {
    const Vec c = load(w.at(w.coupling, in.iterations, b, 1));
    store(w.grad_coupling + b * kLanes, dot<1>(units, w.at(w.cell, in.iterations - 1, b, units), grad_summary)[0]);
    for (int u = 0; u < units; ++u) store(w.at(w.grad_cell, 0, b, units) + u * kLanes, c * grad_summary[u]);
  }
}

// From the gradients of mu_(t + 1) and of the couplings to those of the scores, through the softmax.
void couplings_backward(const Geometry& g, const Prepared& p, int64_t t, Workspace& w) {
  const int pose = p.cell.pose;
  const float *coupling = w.at(w.coupling, t + 1, 0, 1), *grad_mu = w.grad_mu + (t + 1) * p.cell.pose_row();
  sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const auto grad = dot<n>(pose, w.at(w.votes, 0, b, pose), grad_mu) + load<n>(w.grad_coupling + b * kLanes);
    store(w.grad_score + b * kLanes, grad);
  });
  // Less their coupled mean, twice: the gradients of a window's scores add up to zero, and so must their rounding errors.
  for (int round = 0; round < 2; ++round) {
    Vec weighted = {}, mass = {};
    for (int b = 0; b < g.lanes(); b += kLanes) {
      weighted += load(coupling + b) * load(w.grad_score + b);
      mass += load(coupling + b);
    }
    const float mean = sum(weighted) / sum(mass);
    for (int b = 0; b < g.lanes(); b += kLanes) store(w.grad_score + b, load(w.grad_score + b) - mean);
  }
  for (int b = 0; b < g.lanes(); b += kLanes) store(w.grad_score + b, load(coupling + b) * load(w.grad_score + b));
}

// One update of a few blocks backwards: through f, then through the cell.
template <int N, bool kFirst>
void update_backward(const Prepared& p, int64_t t, int b, Workspace& w, float* last_sums) {
  const Cell& cell = p.cell;
  const int rows = cell.rows.count(), units = cell.units, stride = cell.gate_stride(), hidden_rows = padded(units);
  float *grad_hidden = w.at(w.grad_hidden, 0, b, hidden_rows), *gates = w.at(w.gates, t, b, stride);
  p.score.backward<N>(load<N>(w.grad_score + b * kLanes), w.at(w.state, t, b, rows) + StateRows::hidden * kLanes, rows,
                      w.at(w.activations, t, b, p.score.rows), w.at(w.deltas, 0, b, p.score.rows), grad_hidden,
                      hidden_rows, last_sums);
  for (int u = 0; u < units; ++u) {
    float* grad_cell = w.at(w.grad_cell, 0, b, units) + u * kLanes;
    Tile<N> unit;
    load_gates<N>(gates + 4 * u * kLanes, stride, unit);
    const Pack<N> before = kFirst ? zeros<N>() : load<N>(w.at(w.cell, t - 1, b, units) + u * kLanes, units);
    Pack<N> grad = load<N>(grad_cell, units);
    gates_backward<kFirst>(unit, load<N>(w.at(w.squashed, t, b, units) + u * kLanes, units), before,
                           load<N>(grad_hidden + u * kLanes, hidden_rows), grad);
    store(grad_cell, grad, units);
    for (int r = 0; r < 4; ++r) {
      float* sums = w.gate_sums + (4 * u + r) * kLanes;
      store(gates + (4 * u + r) * kLanes, unit[r], stride);
      store(sums, load(sums) + unit[r].total());
    }
  }
  if constexpr (kFirst) return;
  multiply<N>(
      cell.from_hidden, gates, stride, grad_hidden, hidden_rows,
      [](int) __attribute__((always_inline)) { return zeros<N>(); },
      [](int, const Pack<N>& sum) __attribute__((always_inline)) { return sum; });
  store(w.grad_coupling + b * kLanes, multiply_row<N>(cell.gates(), cell.raw_coupling, gates, stride));
}

// One iteration backwards, from mu_(t + 1) to mu_t.
void iteration_backward(const Geometry& g, const Prepared& p, const Window& window, const float* mu, int64_t t,
                        Workspace& w, Sums& sums) {
  const Cell& cell = p.cell;
  couplings_backward(g, p, t, w);
  std::fill_n(w.gate_sums, cell.gates() * kLanes, 0.0f);
  float* last_sums = sums.score + p.score.last_sums_at() * kLanes;
  if (t == 0)
    in_groups(g.blocks(), [&](int b, auto n) { update_backward<n, true>(p, t, b, w, last_sums); });
  else
    in_groups(g.blocks(), [&](int b, auto n) { update_backward<n, false>(p, t, b, w, last_sums); });
  p.score.add_gradients(g.blocks(), w.at(w.state, t, 0, cell.rows.count()) + StateRows::hidden * kLanes,
                        cell.rows.count(), w.at(w.activations, t, 0, p.score.rows), w.deltas, sums.score);
  for (int m = 0; m < cell.gates(); m += 4) {
    Vec four[4];
    for (int r = 0; r < 4; ++r) four[r] = load(w.gate_sums + (m + r) * kLanes);
    sums_of_four(four, w.totals + m);
  }
  std::copy_n(mu, cell.pose, w.mu);
  cell.share_backward(w.totals, w.mu, w.grad_mu + t * cell.pose_row(), sums.mean);
  const float flat = t ? 0.0f : window.flat_coupling();
  for (int m = 0; m < cell.gates(); ++m) {
    sums.bias[m] += w.totals[m];
    sums.coupling[m] += w.totals[m] * flat;
  }
}

// What no iteration changes, for a few blocks: the gates' gradients are added up over the iterations (into those of the
// first), and lead to the gradients of votes and activations.
template <int N>
void projection_backward(const Inputs& in, const Prepared& p, int64_t b, Workspace& w, float* grad_active) {
  const Cell& cell = p.cell;
  const int stride = cell.gate_stride();
  float* gates = w.at(w.gates, 0, b, stride);
  for (int m = 0; m < N * stride; ++m) {
    Vec total = load(gates + m * kLanes);
    for (int64_t t = 1; t < in.iterations; ++t) total += load(w.at(w.gates, t, b, stride) + m * kLanes);
    store(gates + m * kLanes, total);
  }
  const auto through_means = [&](int k) __attribute__((always_inline)) {
    Pack<N> all = zeros<N>();
    for (int64_t t = 0; t <= in.iterations; ++t)
      all = all + load<N>(w.at(w.coupling, t, b, 1)) * w.grad_mu[t * cell.pose_row() + k];
    return all;
  };
  multiply<N>(cell.from_vote, gates, stride, w.grad_votes, padded(cell.pose), through_means,
              [](int, const Pack<N>& sum) __attribute__((always_inline)) { return sum; });
  const Pack<N> active = multiply_row<N>(cell.gates(), cell.raw_active, gates, stride);
  store(grad_active + b * kLanes, load<N>(grad_active + b * kLanes) + active);
}

// From the gradients of all iterations' gates to those of the cell's matrices, votes, activations, weights and poses.
template <class Shape>
void inputs_backward(Shape shape, const Geometry& g, const Inputs& in, const Prepared& p, const Window& window,
                     const float* weight, Workspace& w, Sums& sums, float* grad_weight, float* grad_offset,
                     float* grad_window, float* grad_active) {
  const Cell& cell = p.cell;
  const int stride = cell.gate_stride(), blocks = g.blocks(), later = static_cast<int>(in.iterations - 1) * blocks;
  p.outer(later, cell.gates(), w.at(w.gates, 1, 0, stride), stride, 1 + cell.units, w.state, cell.rows.count(),
          sums.state);
  in_groups(blocks, [&](int b, auto n) {
    projection_backward<n>(in, p, b, w, grad_active);
    for (int k = 0; k < n; ++k)
      votes_backward_block(shape, weight + (b + k) * shape.weight * kLanes, window.poses + (b + k) * shape.in * kLanes,
                           w.grad_votes + k * padded(cell.pose) * kLanes, grad_weight + (b + k) * shape.weight * kLanes,
                           grad_window + (b + k) * shape.in * kLanes,
                           grad_offset ? grad_offset + (b + k) * shape.out * kLanes : nullptr);
  });
  p.outer(blocks, cell.gates(), w.gates, stride, cell.pose, w.votes, cell.pose, sums.vote);
  weighted_sum(stride, blocks, window.activations, w.gates, w.totals);
  for (int m = 0; m < cell.gates(); ++m) sums.active[m] += w.totals[m];
}

void write_parameters(const Prepared& p, const Gradients& grad, const Sums& sums) {
  const Cell& c = p.cell;
  const double *state = sums.totals, *vote = state + c.gates() * (1 + c.units), *score = vote + c.gates() * c.pose;
  const double* mean = sums.totals + sums.vectors;
  for (int m = 0; m < c.gates(); ++m) {
    float* row = grad.weight_ih + c.given_row(m) * c.given_width();
    for (int k = 0; k < c.pose; ++k) {
      row[k] = static_cast<float>(mean[m * c.pose_row() + k]);
      row[c.vote_column() + k] = static_cast<float>(vote[Panel::at(m, k, c.pose)]);
    }
    row[c.coupling_column()] = static_cast<float>(sums.coupling[m] + state[Panel::at(m, 0, 1 + c.units)]);
    row[c.active_column()] = static_cast<float>(sums.active[m]);
    for (int k = 0; k < c.units; ++k)
      grad.weight_hh[c.given_row(m) * c.units + k] = static_cast<float>(state[Panel::at(m, 1 + k, 1 + c.units)]);
    grad.bias[c.given_row(m)] = static_cast<float>(sums.bias[m]);
  }
  p.score.write_gradients(score, grad.score);
}

template <class Shape>
void backward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grad) {
  const Prepared p(g, in);
  const int64_t lanes = g.lanes(), offset_size = in.offset ? lanes * g.out() : 0;
  const int64_t trail_size = in.iterations * g.out();
  const int64_t parts = std::max<int64_t>(1, std::min(g.threads, g.batch));
  const int64_t parameters = Sums(p, nullptr).count();
  Buffer grad_weight(parts * g.outputs * p.weight_size), grad_offset(parts * offset_size);
  std::vector<double> totals(parts * parameters);
  parallel(parts, g.batch, [&](int64_t part, int64_t begin, int64_t end) {
    Pool pool;
    Window window(g, pool);
    Workspace w(g, in, p, pool);
    Sums sums(p, totals.data() + part * parameters);
    sums.take(p, pool);
    float *grad_window = pool.take(lanes * g.in()), *grad_active = pool.take(lanes);
    float* own_weight = grad_weight.get() + part * g.outputs * p.weight_size;
    float* own_offset = in.offset ? grad_offset.get() + part * offset_size : nullptr;
    std::fill_n(grad.in_poses + begin * g.inputs * g.in(), (end - begin) * g.inputs * g.in(), 0.0f);
    std::fill_n(grad.in_activations + begin * g.inputs, (end - begin) * g.inputs, 0.0f);
    for (int64_t image = begin; image < end; ++image)
      for (int64_t position = 0; position < g.positions; ++position) {
        window.read(g, in, image, position);
        if (window.voters == 0) continue;
        std::fill_n(grad_window, lanes * g.in(), 0.0f);
        std::fill_n(grad_active, lanes, 0.0f);
        for (int64_t j = 0; j < g.outputs; ++j) {
          const int64_t o = (image * g.positions + position) * g.outputs + j;
          const float *weight = p.weight + j * p.weight_size, *trail = out.trail + o * trail_size;
          votes(shape, g.blocks(), weight, window.poses, p.offset, w.votes);
          recompute(g, in, p, window, trail, w);
          std::copy_n(grad.poses + o * g.out(), g.out(), w.grad_mu + in.iterations * p.cell.pose_row());
          summary_backward(g, in, p, grad.summary + o * in.units, w);
          for (int64_t t = in.iterations; t-- > 0;)
            iteration_backward(g, p, window, trail + t * g.out(), t, w, sums);
          inputs_backward(shape, g, in, p, window, weight, w, sums, own_weight + j * p.weight_size, own_offset,
                          grad_window, grad_active);
          sums.counted();
        }
        const int32_t* index = in.index + position * g.window;
        scatter_add(g, index, grad_window, static_cast<int>(g.in()), grad.in_poses + image * g.inputs * g.in());
        scatter_add(g, index, grad_active, 1, grad.in_activations + image * g.inputs);
      }
    sums.flush();
  });
  unpack_sum(g, grad_weight.get(), parts, g.outputs * p.weight_size, g.outputs, g.weight(), grad.weight);
  if (in.offset) unpack_sum(g, grad_offset.get(), parts, offset_size, 1, g.out(), grad.offset);
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t k = 0; k < parameters; ++k) totals[k] += totals[part * parameters + k];
  write_parameters(p, grad, Sums(p, totals.data()));
}

}  // namespace
}  // namespace capsroute
