// Connectionist routing (paper, section 4.2), forward and backward, without ever storing a vote.
//
// One (window, output type) at a time: its votes, and the LSTM's state for each of them, live in buffers of one thread,
// through all iterations. Votes are lanes; matrices are scalars. README.md derives what is computed here.
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
  int64_t hidden_layers, units, iterations;
};

struct Outputs {
  float *poses, *summary;
  float* trail;  // [B, P, J, T, D + 2]: mu before each iteration, then the shift and the inverse sum of its softmax
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

  Prepared(const Geometry& g, const Inputs& in)
      : weight_size(g.lanes() * g.weight()),
        weight(pool.take(g.outputs * weight_size)),
        cell(in.weight_ih, in.weight_hh, in.bias, static_cast<int>(in.units), static_cast<int>(g.out()), pool),
        score(in.score, in.widths, in.hidden_layers, static_cast<int>(in.units), pool) {
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

struct Softmax {
  float shift, inverse;
};

// coupling = the softmax of the voters' scores.
Softmax normalise(int blocks, const float* score, const float* mask, float* coupling) {
  Vec top = splat(-INFINITY), total = {};
  for (int b = 0; b < blocks * kLanes; b += kLanes) top = load(mask + b) > 0.0f ? larger(load(score + b), top) : top;
  const float shift = largest(top);
  for (int b = 0; b < blocks * kLanes; b += kLanes) {
    const Vec e = exp2((load(score + b) - shift) * kLog2E) * load(mask + b);
    store(coupling + b, e);
    total += e;
  }
  const float inverse = 1.0f / sum(total);
  for (int b = 0; b < blocks * kLanes; b += kLanes) store(coupling + b, load(coupling + b) * inverse);
  return {shift, inverse};
}

// What the forward pass of one (window, output type) keeps.
struct Scratch {
  float *votes, *projection, *exponents, *state, *next_state, *cell, *activations, *score, *coupling, *shared;
  Scratch(const Geometry& g, const Prepared& p, Pool& pool)
      : votes(pool.take(g.lanes() * g.out())),
        projection(pool.take(g.lanes() * p.cell.gate_stride())),
        exponents(pool.take(kGroup * kLanes * p.cell.gate_stride())),
        state(pool.take(g.lanes() * p.cell.rows.count())),
        next_state(pool.take(g.lanes() * p.cell.rows.count())),
        cell(pool.take(g.lanes() * p.cell.units)),
        activations(pool.take(kGroup * kLanes * p.score.rows)),
        score(pool.take(g.lanes())),
        coupling(pool.take(g.lanes())),
        shared(pool.take(p.cell.gates())) {}
};

template <int N, bool kFirst>
void forward_group(const Prepared& p, const Window& window, int b, const Scratch& s) {
  const Cell& cell = p.cell;
  const int rows = cell.rows.count();
  float* projection = s.projection + b * cell.gate_stride() * kLanes;
  if constexpr (kFirst) cell.project<N>(s.votes + b * cell.pose * kLanes, window.activations + b * kLanes, projection);
  cell.exponents<N, kFirst>(projection, s.shared, s.state + b * rows * kLanes, s.exponents);
  float* hidden = s.next_state + (b * rows + StateRows::hidden) * kLanes;
  for (int u = 0; u < cell.units; ++u) {
    float* at = s.cell + (b * cell.units + u) * kLanes;
    Tile<N> exponents;
    load_gates<N>(s.exponents + 4 * u * kLanes, cell.gate_stride(), exponents);
    const Unit<N> unit = advance<kFirst>(exponents, load<N>(at, cell.units));
    store(at, unit.cell, cell.units);
    store(hidden + u * kLanes, unit.hidden, rows);
  }
  store(s.score + b * kLanes, p.score.score<N>(hidden, rows, s.activations));
}

void forward_output(const Geometry& g, const Inputs& in, const Prepared& p, const Window& window, Scratch& s, float* mu,
                    float* summary, float* trail) {
  const int blocks = g.blocks(), pose = p.cell.pose, rows = p.cell.rows.count();
  weighted_sum(pose, blocks, window.flat, s.votes, mu);
  for (int64_t t = 0; t < in.iterations; ++t, trail += pose + 2) {
    std::copy_n(mu, pose, trail);
    p.cell.share(mu, t ? 0.0f : window.flat_coupling(), s.shared);
    if (t == 0)
      in_groups(blocks, [&](int b, auto n) { forward_group<n, true>(p, window, b, s); });
    else
      in_groups(blocks, [&](int b, auto n) { forward_group<n, false>(p, window, b, s); });
    const Softmax softmax = normalise(blocks, s.score, window.mask, s.coupling);
    trail[pose] = softmax.shift;
    trail[pose + 1] = softmax.inverse;
    std::swap(s.state, s.next_state);
    for (int b = 0; b < blocks; ++b)
      store(s.state + (b * rows + StateRows::coupling) * kLanes, load(s.coupling + b * kLanes));
    weighted_sum(pose, blocks, s.coupling, s.votes, mu);
  }
  weighted_sum(p.cell.units, blocks, s.coupling, s.cell, summary);
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  const Prepared p(g, in);
  const int64_t trail_size = in.iterations * (g.out() + 2);
  parallel(g.threads, g.batch * g.positions, [&](int64_t, int64_t begin, int64_t end) {
    Pool pool;
    Window window(g, pool);
    Scratch s(g, p, pool);
    for (int64_t at = begin; at < end; ++at) {
      window.read(g, in, at / g.positions, at % g.positions);
      for (int64_t j = 0; j < g.outputs; ++j) {
        const int64_t o = at * g.outputs + j;
        float *mu = out.poses + o * g.out(), *summary = out.summary + o * in.units, *trail = out.trail + o * trail_size;
        if (window.voters == 0) {
          std::fill_n(mu, g.out(), 0.0f);
          std::fill_n(summary, in.units, 0.0f);
          std::fill_n(trail, trail_size, 0.0f);
          continue;
        }
        votes(shape, g.blocks(), p.weight + j * p.weight_size, window.poses, p.offset, s.votes);
        forward_output(g, in, p, window, s, mu, summary, trail);
      }
    }
  });
}

// All that the backward pass of one (window, output type) keeps, iteration by iteration: arrays of [T][blocks][rows].
struct Workspace {
  int64_t blocks;
  float *votes, *projection, *shared;                             // shared: [T][4U]
  float *gates, *cell, *squashed, *state, *activations;           // [T]; gates become their own gradients
  float* coupling;                                                // [T + 1][lanes], the flat one first
  float *deltas, *grad_hidden, *grad_cell, *grad_score, *grad_coupling;
  float *gate_sums, *totals, *grad_mu, *grad_votes;               // totals: [4U]; grad_mu: [T + 1][D]

  Workspace(const Geometry& g, const Inputs& in, const Prepared& p, Pool& pool) : blocks(g.blocks()) {
    const int64_t lanes = g.lanes(), all = in.iterations * lanes;
    const Cell& c = p.cell;
    votes = pool.take(lanes * c.pose);
    projection = pool.take(kGroup * kLanes * c.gate_stride());
    shared = pool.take(in.iterations * c.gates());
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
    grad_mu = pool.take((in.iterations + 1) * c.pose);
    grad_votes = pool.take(kGroup * kLanes * padded(c.pose));
    for (int64_t b = 0; b < in.iterations * blocks; ++b) {
      store(state + (b * c.rows.count() + c.rows.ones()) * kLanes, splat(1.0f));
      p.score.write_ones(activations + b * p.score.rows * kLanes);
    }
  }
  // Where block b of iteration t starts in an array that has so many rows for each block.
  float* at(float* array, int64_t t, int64_t b, int64_t rows) const { return array + (t * blocks + b) * rows * kLanes; }
};

// What a thread sums over the votes of one image. Vectors are summed over their lanes, and all is brought to doubles, once
// for each image: a float sum over a whole batch would lose digits.
struct Sums {
  int64_t vectors, scalars;
  float *state, *vote, *score;              // vectors, as panels
  float *mean, *bias, *coupling, *active;   // scalars: [4U][D] and [4U]
  double* totals;

  Sums(const Prepared& p, Pool& pool, double* totals) : totals(totals) {
    const Cell& c = p.cell;
    vectors = count_vectors(p);
    scalars = count_scalars(p);
    state = pool.take(vectors * kLanes);
    vote = state + c.gates() * (1 + c.units) * kLanes;
    score = vote + c.gates() * c.pose * kLanes;
    mean = pool.take(scalars);
    bias = mean + c.gates() * c.pose;
    coupling = bias + c.gates();
    active = coupling + c.gates();
  }
  static int64_t count_vectors(const Prepared& p) {
    return p.cell.gates() * (1 + p.cell.units + p.cell.pose) + p.score.gradient_vectors();
  }
  static int64_t count_scalars(const Prepared& p) { return p.cell.gates() * (p.cell.pose + 3); }

  void flush() {
    for (int64_t k = 0; k < vectors; ++k) totals[k] += sum(load(state + k * kLanes));
    for (int64_t k = 0; k < scalars; ++k) totals[vectors + k] += mean[k];
    std::fill_n(state, vectors * kLanes, 0.0f);
    std::fill_n(mean, scalars, 0.0f);
  }
};

template <int N, bool kFirst>
void recompute_update(const Prepared& p, const Window& window, const Softmax& softmax, int64_t t, int b, Workspace& w) {
  const Cell& cell = p.cell;
  const int rows = cell.rows.count(), units = cell.units, stride = cell.gate_stride();
  float *gates = w.at(w.gates, t, b, stride), *state = w.at(w.state, t, b, rows);
  cell.exponents<N, kFirst>(w.projection, w.shared + t * cell.gates(), kFirst ? nullptr : w.at(w.state, t - 1, b, rows),
                            gates);
  for (int u = 0; u < units; ++u) {
    Tile<N> exponents;
    load_gates<N>(gates + 4 * u * kLanes, stride, exponents);
    const Pack<N> before = kFirst ? zeros<N>() : load<N>(w.at(w.cell, t - 1, b, units) + u * kLanes, units);
    const KeptUnit<N> unit = advance_and_keep<kFirst>(exponents, before);
    for (int r = 0; r < 4; ++r) store(gates + (4 * u + r) * kLanes, unit.gates[r], stride);
    store(w.at(w.cell, t, b, units) + u * kLanes, unit.cell, units);
    store(w.at(w.squashed, t, b, units) + u * kLanes, unit.squashed, units);
    store(state + (StateRows::hidden + u) * kLanes, unit.gates[3] * unit.squashed, rows);
  }
  const Pack<N> score =
      p.score.score<N>(state + StateRows::hidden * kLanes, rows, w.at(w.activations, t, b, p.score.rows));
  const Pack<N> c = exp2((score - softmax.shift) * kLog2E) * load<N>(window.mask + b * kLanes) * softmax.inverse;
  store(w.at(w.coupling, t + 1, b, 1), c);
  store(state + StateRows::coupling * kLanes, c, rows);
}

// Recomputes, from the means and softmax sums that forward kept, all iterations of a few blocks at once.
void recompute(const Geometry& g, const Inputs& in, const Prepared& p, const Window& window, const float* trail,
               Workspace& w) {
  const int pose = p.cell.pose;
  for (int64_t t = 0; t < in.iterations; ++t)
    p.cell.share(trail + t * (pose + 2), t ? 0.0f : window.flat_coupling(), w.shared + t * p.cell.gates());
  std::copy_n(window.flat, g.lanes(), w.coupling);
  in_groups(g.blocks(), [&](int b, auto n) {
    p.cell.project<n>(w.at(w.votes, 0, b, pose), window.activations + b * kLanes, w.projection);
    for (int64_t t = 0; t < in.iterations; ++t) {
      const float* kept = trail + t * (pose + 2) + pose;
      const Softmax softmax{kept[0], kept[1]};
      if (t == 0)
        recompute_update<n, true>(p, window, softmax, t, b, w);
      else
        recompute_update<n, false>(p, window, softmax, t, b, w);
    }
  });
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
  const float *coupling = w.at(w.coupling, t + 1, 0, 1), *grad_mu = w.grad_mu + (t + 1) * pose;
  Vec mean = {};
  sweep<2>(g.blocks(), [&](int b, auto n) __attribute__((always_inline)) {
    const auto grad = dot<n>(pose, w.at(w.votes, 0, b, pose), grad_mu) + load<n>(w.grad_coupling + b * kLanes);
    const auto weighted = load<n>(coupling + b * kLanes) * grad;
    store(w.grad_score + b * kLanes, weighted);
    mean += weighted.total();
  });
  const float centre = sum(mean);
  for (int b = 0; b < g.lanes(); b += kLanes)
    store(w.grad_score + b, load(w.grad_score + b) - load(coupling + b) * centre);
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
    KeptUnit<N> unit;
    load_gates<N>(gates + 4 * u * kLanes, stride, unit.gates);
    unit.squashed = load<N>(w.at(w.squashed, t, b, units) + u * kLanes, units);
    const Pack<N> before = kFirst ? zeros<N>() : load<N>(w.at(w.cell, t - 1, b, units) + u * kLanes, units);
    Pack<N> grad = load<N>(grad_cell, units);
    Tile<N> out;
    retreat<kFirst>(unit, before, load<N>(grad_hidden + u * kLanes, hidden_rows), grad, out);
    store(grad_cell, grad, units);
    for (int r = 0; r < 4; ++r) {
      float* sums = w.gate_sums + (4 * u + r) * kLanes;
      store(gates + (4 * u + r) * kLanes, out[r], stride);
      store(sums, load(sums) + out[r].total());
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
  cell.mean_backward(w.totals, w.grad_mu + t * cell.pose);
  for (int m = 0; m < cell.gates(); ++m) {
    for (int k = 0; k < cell.pose; ++k) sums.mean[m * cell.pose + k] += w.totals[m] * mu[k];
    sums.bias[m] += w.totals[m];
    if (t == 0) sums.coupling[m] += w.totals[m] * window.flat_coupling();
  }
}

// What an iteration does not change: from the gates of all iterations to votes, activations, weights and poses.
template <class Shape>
void inputs_backward(Shape shape, const Geometry& g, const Inputs& in, const Prepared& p, const Window& window,
                     const float* weight, Workspace& w, Sums& sums, float* grad_weight, float* grad_offset,
                     float* grad_window, float* grad_active) {
  const Cell& cell = p.cell;
  const int pose = cell.pose, stride = cell.gate_stride(), blocks = g.blocks(), later = static_cast<int>(in.iterations - 1);
  add_outer(later * blocks, cell.gates(), w.at(w.gates, 1, 0, stride), stride, 1 + cell.units, w.state,
            cell.rows.count(), sums.state);
  for (int b = 0; b < blocks; ++b)
    for (int m = 0; m < cell.gates(); ++m) {
      float* total = w.at(w.gates, 0, b, stride) + m * kLanes;
      Vec all = load(total);
      for (int t = 1; t <= later; ++t) all += load(w.at(w.gates, t, b, stride) + m * kLanes);
      store(total, all);
    }
  add_outer(blocks, cell.gates(), w.gates, stride, pose, w.votes, pose, sums.vote);
  weighted_sum(stride, blocks, window.activations, w.gates, w.totals);
  for (int m = 0; m < cell.gates(); ++m) sums.active[m] += w.totals[m];
  in_groups(blocks, [&](int b, auto n) {
    const float* gates = w.at(w.gates, 0, b, stride);
    const auto through_means = [&](int k) __attribute__((always_inline)) {
      Pack<n> all = zeros<n>();
      for (int64_t t = 0; t <= in.iterations; ++t)
        all = all + load<n>(w.at(w.coupling, t, b, 1)) * w.grad_mu[t * pose + std::min(k, pose - 1)];
      return all;
    };
    multiply<n>(cell.from_vote, gates, stride, w.grad_votes, padded(pose), through_means,
                [](int, const Pack<n>& sum) __attribute__((always_inline)) { return sum; });
    const auto active = multiply_row<n>(cell.gates(), cell.raw_active, gates, stride);
    store(grad_active + b * kLanes, load<n>(grad_active + b * kLanes) + active);
    for (int k = 0; k < n; ++k)
      votes_backward_block(shape, weight + (b + k) * shape.weight * kLanes, window.poses + (b + k) * shape.in * kLanes,
                           w.grad_votes + k * padded(pose) * kLanes, grad_weight + (b + k) * shape.weight * kLanes,
                           grad_window + (b + k) * shape.in * kLanes,
                           grad_offset ? grad_offset + (b + k) * shape.out * kLanes : nullptr);
  });
}

void write_parameters(const Prepared& p, const Gradients& grad, const double* totals) {
  const Cell& c = p.cell;
  const double *state = totals, *vote = state + c.gates() * (1 + c.units), *score = vote + c.gates() * c.pose;
  const double *mean = totals + Sums::count_vectors(p), *bias = mean + c.gates() * c.pose;
  const double *coupling = bias + c.gates(), *active = coupling + c.gates();
  for (int m = 0; m < c.gates(); ++m) {
    float* row = grad.weight_ih + c.given_row(m) * c.given_width();
    for (int k = 0; k < c.pose; ++k) {
      row[k] = static_cast<float>(mean[m * c.pose + k]);
      row[c.vote_column() + k] = static_cast<float>(vote[Panel::at(m, k, c.pose)]);
    }
    row[c.coupling_column()] = static_cast<float>(coupling[m] + state[Panel::at(m, 0, 1 + c.units)]);
    row[c.active_column()] = static_cast<float>(active[m]);
    for (int k = 0; k < c.units; ++k)
      grad.weight_hh[c.given_row(m) * c.units + k] = static_cast<float>(state[Panel::at(m, 1 + k, 1 + c.units)]);
    grad.bias[c.given_row(m)] = static_cast<float>(bias[m]);
  }
  p.score.write_gradients(score, grad.score);
}

template <class Shape>
void backward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out, const Gradients& grad) {
  const Prepared p(g, in);
  const int64_t lanes = g.lanes(), offset_size = in.offset ? lanes * g.out() : 0;
  const int64_t trail_size = in.iterations * (g.out() + 2);
  const int64_t parts = std::max<int64_t>(1, std::min(g.threads, g.batch));
  const int64_t parameters = Sums::count_vectors(p) + Sums::count_scalars(p);
  Buffer grad_weight(parts * g.outputs * p.weight_size), grad_offset(parts * offset_size);
  std::vector<double> totals(parts * parameters);
  parallel(parts, g.batch, [&](int64_t part, int64_t begin, int64_t end) {
    Pool pool;
    Window window(g, pool);
    Workspace w(g, in, p, pool);
    Sums sums(p, pool, totals.data() + part * parameters);
    float *grad_window = pool.take(lanes * g.in()), *grad_active = pool.take(lanes);
    float* own_weight = grad_weight.get() + part * g.outputs * p.weight_size;
    float* own_offset = in.offset ? grad_offset.get() + part * offset_size : nullptr;
    std::fill_n(grad.in_poses + begin * g.inputs * g.in(), (end - begin) * g.inputs * g.in(), 0.0f);
    std::fill_n(grad.in_activations + begin * g.inputs, (end - begin) * g.inputs, 0.0f);
    for (int64_t image = begin; image < end; ++image, sums.flush())
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
          std::copy_n(grad.poses + o * g.out(), g.out(), w.grad_mu + in.iterations * g.out());
          summary_backward(g, in, p, grad.summary + o * in.units, w);
          for (int64_t t = in.iterations; t-- > 0;)
            iteration_backward(g, p, window, trail + t * (g.out() + 2), t, w, sums);
          inputs_backward(shape, g, in, p, window, weight, w, sums, own_weight + j * p.weight_size, own_offset,
                          grad_window, grad_active);
        }
        const int32_t* index = in.index + position * g.window;
        scatter_add(g, index, grad_window, static_cast<int>(g.in()), grad.in_poses + image * g.inputs * g.in());
        scatter_add(g, index, grad_active, 1, grad.in_activations + image * g.inputs);
      }
  });
  unpack_sum(g, grad_weight.get(), parts, g.outputs * p.weight_size, g.outputs, g.weight(), grad.weight);
  if (in.offset) unpack_sum(g, grad_offset.get(), parts, offset_size, 1, g.out(), grad.offset);
  for (int64_t part = 1; part < parts; ++part)
    for (int64_t k = 0; k < parameters; ++k) totals[k] += totals[part * parameters + k];
  write_parameters(p, grad, totals.data());
}

}  // namespace
}  // namespace capsroute

extern "C" {

// Returns 0, or 1 when the index table names an input that does not exist.
int capsroute_connectionist_forward(const capsroute::Geometry* g, const capsroute::Inputs* in,
                                    const capsroute::Outputs* out) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::forward(shape, *g, *in, *out); });
  return 0;
}

int capsroute_connectionist_backward(const capsroute::Geometry* g, const capsroute::Inputs* in,
                                     const capsroute::Outputs* out, const capsroute::Gradients* grad) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::backward(shape, *g, *in, *out, *grad); });
  return 0;
}
}
