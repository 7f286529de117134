// The LSTM cell: its matrices as products want them, and its nonlinearities.
//
// Gates of one unit lie together (input, forget, candidate, output), so that one strip of four rows gives all that the unit
// needs. The forward matrices carry the factors of the exponents: a product's sums go straight into exp2.
#pragma once

#include "products.hpp"

namespace capsroute {

constexpr float kSigmoidScale = -kLog2E, kTanhScale = -2.0f * kLog2E;
// Beyond this a gate is closed to 1e-12; three such factors still multiply without overflow.
constexpr float kExponentBound = 40.0f;

// The rows of a block's state: the coupling, the hidden units (padded to whole strips), and a row of ones, whose products
// with gradients are those of biases.
struct StateRows {
  int units;
  static constexpr int coupling = 0, hidden = 1;
  int ones() const { return 1 + padded(units); }
  int count() const { return 2 + padded(units); }
};

// The functions below work on several vectors in step: one alone would wait for the results of its own operations.

template <int N, class Function>
CAPSROUTE_INLINE Pack<N> each(const Pack<N>& x, Function function) {
  Pack<N> r;
  for (int n = 0; n < N; ++n) r[n] = function(x[n]);
  return r;
}
template <int N>
CAPSROUTE_INLINE Pack<N> quotient(const Pack<N>& a, const Pack<N>& b) {
  Pack<N> r;
  for (int n = 0; n < N; ++n) r[n] = a[n] / b[n];
  return r;
}

// 2^x = power (1 + fraction), |fraction| < 0.5 to a few units in its last place; |x| up to kExponentBound, NaN stays.
template <int N>
struct Exponential {
  Pack<N> power, fraction;
};
template <int N>
CAPSROUTE_INLINE Exponential<N> exponential(Pack<N> x) {
  constexpr float kRound = 12582912.0f;
  x = each(x, [](Vec v) { return at_most(kExponentBound, at_least(-kExponentBound, v)); });
  const Pack<N> shifted = x + kRound;
  const Pack<N> f = x - (shifted - kRound);
  Pack<N> p = f * 0.00015403512225020677f + 0.0013390735257416964f;
  p = p * f + 0.009618237614631653f;
  p = p * f + 0.05550357326865196f;
  p = p * f + 0.24022649228572845f;
  p = p * f + 0.6931471824645996f;
  const auto power = [](Vec v) { return reinterpret_cast<Vec>((reinterpret_cast<IntVec>(v) << 23) + 0x3f800000); };
  return {each(shifted, power), p * f};
}

// sigmoid = 1 / below; tanh = above / below. Quotients wait until several of them share one division.
template <int N>
CAPSROUTE_INLINE Pack<N> sigmoid_below(const Pack<N>& exponent) {
  const Exponential<N> e = exponential(exponent);
  return e.power * e.fraction + (e.power + 1.0f);
}
template <int N>
struct Ratio {
  Pack<N> above, below;
};
template <int N>
CAPSROUTE_INLINE Ratio<N> tanh_ratio(const Pack<N>& exponent) {
  const Exponential<N> e = exponential(exponent);
  const Pack<N> less_one = e.power * e.fraction + (e.power - 1.0f);  // exact where the tangent is small
  return {zeros<N>() - less_one, less_one + 2.0f};
}

// What one unit is after an iteration; `exponents` in the order of the gates.
template <int N>
struct Unit {
  Pack<N> cell, hidden;
};
template <bool kFirst, int N>
CAPSROUTE_INLINE Unit<N> advance(const Tile<N>& exponents, Pack<N> cell) {
  const Ratio<N> candidate = tanh_ratio(exponents[2]);
  const Pack<N> added = sigmoid_below(exponents[0]) * candidate.below;
  if constexpr (kFirst) {
    cell = quotient(candidate.above, added);
  } else {
    const Pack<N> forget = sigmoid_below(exponents[1]);
    cell = quotient(cell * added + candidate.above * forget, added * forget);
  }
  const Ratio<N> squashed = tanh_ratio(cell * kTanhScale);
  return {cell, quotient(squashed.above, sigmoid_below(exponents[3]) * squashed.below)};
}

// The same with all that the backward pass reads.
template <int N>
struct KeptUnit {
  Tile<N> gates;
  Pack<N> cell, squashed;
};
template <bool kFirst, int N>
CAPSROUTE_INLINE KeptUnit<N> advance_and_keep(const Tile<N>& exponents, const Pack<N>& cell) {
  const Pack<N> one = zeros<N>() + 1.0f;
  const Ratio<N> candidate = tanh_ratio(exponents[2]);
  const Pack<N> in = sigmoid_below(exponents[0]), added = in * candidate.below;
  KeptUnit<N> u;
  if constexpr (kFirst) {
    const Pack<N> inverse = quotient(one, added);
    u.gates[0] = candidate.below * inverse;
    u.gates[1] = zeros<N>();
    u.gates[2] = candidate.above * (in * inverse);
    u.cell = u.gates[0] * u.gates[2];
  } else {
    const Pack<N> forget = sigmoid_below(exponents[1]);
    const Pack<N> inverse = quotient(one, added * forget), shared = forget * inverse;
    u.gates[0] = candidate.below * shared;
    u.gates[1] = added * inverse;
    u.gates[2] = candidate.above * (in * shared);
    u.cell = u.gates[1] * cell + u.gates[0] * u.gates[2];
  }
  const Ratio<N> squashed = tanh_ratio(u.cell * kTanhScale);
  const Pack<N> out = sigmoid_below(exponents[3]), inverse = quotient(one, out * squashed.below);
  u.gates[3] = squashed.below * inverse;
  u.squashed = squashed.above * (out * inverse);
  return u;
}

// The matrices of the cell, repacked once per call. `raw` ones are as given, the others carry the exponents' factors.
struct Cell {
  int units, pose;
  StateRows rows;
  const float* weight_ih;            // as given, [4U, 2D + 2]
  Panel vote, state;                 // [4U][D], and [4U][1 + U]: the column of the coupling, then the hidden state's
  Panel from_vote, from_hidden;      // raw and transposed: [D][4U], [U][4U]
  float* mean;                       // [D][4U]
  float *bias, *active, *coupling;   // [4U]
  float *raw_active, *raw_coupling;  // [4U]

  int gates() const { return 4 * units; }
  // Vectors between blocks of gates: were it a power of two, blocks would fall into the same few cache sets.
  int gate_stride() const { return gates() + 2; }
  // Where the matrices as given have gate m % 4 of unit m / 4, and where the parts of the cell's input start in them.
  int given_row(int m) const { return m % 4 * units + m / 4; }
  int given_width() const { return 2 * pose + 2; }
  int coupling_column() const { return pose; }
  int vote_column() const { return pose + 1; }
  int active_column() const { return 2 * pose + 1; }

  Cell(const float* weight_ih, const float* weight_hh, const float* given_bias, int units, int pose, Pool& pool)
      : units(units), pose(pose), rows{units}, weight_ih(weight_ih), mean(pool.take(4 * units * pose)) {
    const auto scale = [](int m) { return m % 4 == 2 ? kTanhScale : kSigmoidScale; };
    const auto ih = [&](int m, int k) { return weight_ih[given_row(m) * given_width() + k]; };
    const auto hh = [&](int m, int k) { return weight_hh[given_row(m) * units + k]; };
    const auto state_entry = [&](int m, int k) { return scale(m) * (k ? hh(m, k - 1) : ih(m, coupling_column())); };
    vote = Panel(gates(), pose, pool, [&](int m, int k) { return scale(m) * ih(m, vote_column() + k); });
    state = Panel(gates(), 1 + units, pool, state_entry);
    from_vote = Panel(pose, gates(), pool, [&](int k, int m) { return ih(m, vote_column() + k); });
    from_hidden = Panel(units, gates(), pool, [&](int k, int m) { return hh(m, k); });
    for (float** row : {&bias, &active, &coupling, &raw_active, &raw_coupling}) *row = pool.take(gates());
    for (int m = 0; m < gates(); ++m) {
      bias[m] = scale(m) * given_bias[given_row(m)];
      active[m] = scale(m) * (raw_active[m] = ih(m, active_column()));
      coupling[m] = scale(m) * (raw_coupling[m] = ih(m, coupling_column()));
      for (int k = 0; k < pose; ++k) mean[k * gates() + m] = scale(m) * ih(m, k);
    }
  }

  // What all votes for one output capsule share: bias + W_mu mu, and before the first update the flat coupling's column.
  void share(const float* mu, float flat, float* out) const {
    const int count = gates();
    for (int m = 0; m < count; ++m) out[m] = bias[m] + flat * coupling[m];
    for (int k = 0; k < pose; ++k)
      for (int m = 0; m < count; ++m) out[m] += mu[k] * mean[k * count + m];
  }

  // The part of the exponents that no iteration changes: W_v v + W_a a.
  template <int N>
  void project(const float* votes, const float* activations, float* out) const {
    const Pack<N> a = load<N>(activations);
    multiply<N>(
        vote, votes, pose, out, gate_stride(), [&](int m) __attribute__((always_inline)) { return a * active[m]; },
        [](int, const Pack<N>& sum) __attribute__((always_inline)) { return sum; });
  }

  // The exponents of an update: the projection, what is shared, and, but for the first update, W_c c + W_h h.
  template <int N, bool kFirst>
  void exponents(const float* projection, const float* shared, const float* before, float* out) const {
    const auto start = [&](int m) __attribute__((always_inline)) {
      return load<N>(projection + m * kLanes, gate_stride()) + shared[m];
    };
    if constexpr (kFirst)
      for (int m = 0; m < gates(); ++m) store(out + m * kLanes, start(m), gate_stride());
    else
      multiply<N>(state, before, rows.count(), out, gate_stride(), start,
                  [](int, const Pack<N>& sum) __attribute__((always_inline)) { return sum; });
  }

  // From the sum of the gates' gradients over the votes of one output capsule to that of its mean.
  void mean_backward(const float* totals, float* out) const {
    std::fill_n(out, pose, 0.0f);
    for (int m = 0; m < gates(); ++m) {
      const float* row = weight_ih + given_row(m) * given_width();
      for (int k = 0; k < pose; ++k) out[k] += totals[m] * row[k];
    }
  }
};

// The four gates of one unit.
template <int N>
CAPSROUTE_INLINE void load_gates(const float* from, int stride, Tile<N>& gates) {
  for (int r = 0; r < 4; ++r) gates[r] = load<N>(from + r * kLanes, stride);
}

// The gradients of one unit's gates before their nonlinearity, from those of its hidden and cell state; that of the cell
// state becomes that of the one `before`, which the iteration began with.
template <bool kFirst, int N>
CAPSROUTE_INLINE void retreat(const KeptUnit<N>& u, const Pack<N>& before, const Pack<N>& grad_hidden, Pack<N>& grad_cell,
                              Tile<N>& out) {
  const auto& [in, forget, candidate, open] = u.gates;
  const Pack<N> grad = grad_cell + grad_hidden * open - grad_hidden * open * u.squashed * u.squashed;
  out[0] = grad * candidate * (in - in * in);
  out[1] = kFirst ? zeros<N>() : grad * before * (forget - forget * forget);
  out[2] = grad * in - grad * in * candidate * candidate;
  out[3] = grad_hidden * u.squashed * (open - open * open);
  grad_cell = grad * forget;
}

}  // namespace capsroute
