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

template <int N>
CAPSROUTE_INLINE Pack<N> quotient(const Pack<N>& a, const Pack<N>& b) {
  Pack<N> r;
  for (int n = 0; n < N; ++n) r[n] = a[n] / b[n];
  return r;
}
template <int N>
CAPSROUTE_INLINE Pack<N> bounded(Pack<N> x) {
  for (int n = 0; n < N; ++n) x[n] = at_most(kExponentBound, at_least(-kExponentBound, x[n]));
  return x;
}

// 2^x = power (1 + fraction), |fraction| < 0.5 to a few units in its last place; x from -126 to 127.
template <int N>
struct Exponential {
  Pack<N> power, fraction;
};
constexpr float kRound = 12582912.0f;  // adding it leaves a whole number in the low bits
template <int N>
CAPSROUTE_INLINE Exponential<N> exponential(const Pack<N>& shifted, const Pack<N>& f) {
  Pack<N> p = f * 0.00015403512225020677f + 0.0013390735257416964f;
  p = p * f + 0.009618237614631653f;
  p = p * f + 0.05550357326865196f;
  p = p * f + 0.24022649228572845f;
  p = p * f + 0.6931471824645996f;
  Pack<N> power;
  for (int n = 0; n < N; ++n)
    power[n] = reinterpret_cast<Vec>((reinterpret_cast<IntVec>(shifted[n]) << 23) + 0x3f800000);
  return {power, p * f};
}
template <int N>
CAPSROUTE_INLINE Exponential<N> exponential(const Pack<N>& x) {
  const Pack<N> shifted = x + kRound;
  return exponential(shifted, x - (shifted - kRound));
}

// e^x for x <= 0, to a few units in the last place also where x is large: x log2(e) is never rounded as a whole.
CAPSROUTE_INLINE Vec exact_exp(Vec x) {
  constexpr float kLog2ELow = 1.925963033500e-8f;  // what kLog2E lacks
  x = at_least(-87.0f, x);
  const Vec shifted = x * kLog2E + kRound, f = (x * kLog2E - (shifted - kRound)) + x * kLog2ELow;
  const Exponential<1> e = exponential(Pack<1>{shifted}, Pack<1>{f});
  return e.power[0] * e.fraction[0] + e.power[0];
}

// sigmoid = 1 / below; tanh = above / below. Quotients wait until several of them share one division.
template <int N>
CAPSROUTE_INLINE Pack<N> sigmoid_below(const Pack<N>& exponent) {
  const Exponential<N> e = exponential(bounded(exponent));
  return e.power * e.fraction + (e.power + 1.0f);
}
template <int N>
struct Ratio {
  Pack<N> above, below;
};
template <int N>
CAPSROUTE_INLINE Ratio<N> tanh_ratio(const Pack<N>& exponent) {
  const Exponential<N> e = exponential(bounded(exponent));
  const Pack<N> above = e.power * e.fraction + (e.power - 1.0f);  // exact also where tanh is small
  return {zeros<N>() - above, above + 2.0f};
}

// The cell state after an update, from the exponents of the input, forget and candidate gates. What the unit then shows is
// a function of its own: with both in one loop, a processor would see too few independent operations ahead.
template <bool kFirst, int N>
CAPSROUTE_INLINE Pack<N> next_cell(const Tile<N>& exponents, const Pack<N>& cell) {
  const Ratio<N> candidate = tanh_ratio(exponents[2]);
  const Pack<N> added = sigmoid_below(exponents[0]) * candidate.below;
  if constexpr (kFirst) return quotient(candidate.above, added);
  const Pack<N> forget = sigmoid_below(exponents[1]);
  return quotient(cell * added + candidate.above * forget, added * forget);
}
template <int N>
CAPSROUTE_INLINE Pack<N> next_hidden(const Pack<N>& exponent, const Pack<N>& cell) {
  const Ratio<N> squashed = tanh_ratio(cell * kTanhScale);
  return quotient(squashed.above, sigmoid_below(exponent) * squashed.below);
}

// The same, replacing exponents by the gates themselves, which the backward pass reads.
template <bool kFirst, int N>
CAPSROUTE_INLINE Pack<N> next_cell_and_gates(Tile<N>& gates, const Pack<N>& cell) {
  const Ratio<N> candidate = tanh_ratio(gates[2]);
  const Pack<N> in = sigmoid_below(gates[0]), forget = kFirst ? zeros<N>() + 1.0f : sigmoid_below(gates[1]);
  const Pack<N> added = in * candidate.below, inverse = quotient(zeros<N>() + 1.0f, added * forget);
  const Pack<N> without_forget = forget * inverse;
  gates[0] = candidate.below * without_forget;
  gates[1] = kFirst ? zeros<N>() : added * inverse;
  gates[2] = candidate.above * (in * without_forget);
  return gates[1] * cell + gates[0] * gates[2];
}
template <int N>
CAPSROUTE_INLINE Pack<N> squash_and_open(Pack<N>& gate, const Pack<N>& cell) {
  const Ratio<N> squashed = tanh_ratio(cell * kTanhScale);
  const Pack<N> open = sigmoid_below(gate), inverse = quotient(zeros<N>() + 1.0f, open * squashed.below);
  gate = squashed.below * inverse;
  return squashed.above * (open * inverse);
}

// The gradients of one unit's gates before their nonlinearity, from those of its hidden and cell state; that of the cell
// state becomes that of the one `before`, which the update began with. `squashed` is tanh of the cell state after it.
template <bool kFirst, int N>
CAPSROUTE_INLINE void gates_backward(Tile<N>& gates, const Pack<N>& squashed, const Pack<N>& before,
                                     const Pack<N>& grad_hidden, Pack<N>& grad_cell) {
  const Pack<N> in = gates[0], forget = gates[1], candidate = gates[2], open = gates[3];
  const Pack<N> shown = grad_hidden * open, grad = grad_cell + (shown - shown * squashed * squashed);
  const Pack<N> added = grad * in;
  gates[0] = added * candidate * (zeros<N>() + 1.0f - in);
  gates[1] = kFirst ? zeros<N>() : grad * before * (forget - forget * forget);
  gates[2] = added - added * candidate * candidate;
  gates[3] = shown * squashed * (zeros<N>() + 1.0f - open);
  grad_cell = grad * forget;
}

// The matrices of the cell, repacked once per call. `raw` ones are as given, the others carry the exponents' factors.
struct Cell {
  int units, pose;
  StateRows rows;
  Panel vote, state;                 // [4U][D], and [4U][1 + U]: the column of the coupling, then the hidden state's
  Panel from_vote, from_hidden;      // raw and transposed: [D][4U], [U][4U]
  float *mean, *raw_mean;            // [D][4U], [4U][D]
  float *bias, *active, *coupling;   // [4U]
  float *raw_active, *raw_coupling;  // [4U]

  int gates() const { return 4 * units; }
  // Rows of numbers that are no votes are padded to whole vectors.
  int gate_row() const { return whole_vectors(gates()); }
  int pose_row() const { return whole_vectors(pose); }
  static int whole_vectors(int count) { return (count + kLanes - 1) / kLanes * kLanes; }
  // Vectors between blocks of gates: were it a power of two, blocks would fall into the same few cache sets.
  int gate_stride() const { return gates() + 2; }
  // Where the matrices as given have gate m % 4 of unit m / 4, and where the parts of the cell's input start in them.
  int given_row(int m) const { return m % 4 * units + m / 4; }
  int given_width() const { return 2 * pose + 2; }
  int coupling_column() const { return pose; }
  int vote_column() const { return pose + 1; }
  int active_column() const { return 2 * pose + 1; }

  Cell(const float* weight_ih, const float* weight_hh, const float* given_bias, int units, int pose, bool bfloat16, Pool& pool)
      : units(units), pose(pose), rows{units} {
    const auto scale = [](int m) { return m % 4 == 2 ? kTanhScale : kSigmoidScale; };
    const auto ih = [&](int m, int k) { return weight_ih[given_row(m) * given_width() + k]; };
    const auto hh = [&](int m, int k) { return weight_hh[given_row(m) * units + k]; };
    const auto state_entry = [&](int m, int k) { return scale(m) * (k ? hh(m, k - 1) : ih(m, coupling_column())); };
    vote = Panel(gates(), pose, bfloat16, pool, [&](int m, int k) { return scale(m) * ih(m, vote_column() + k); });
    state = Panel(gates(), 1 + units, bfloat16, pool, state_entry);
    from_vote = Panel(pose, gates(), bfloat16, pool, [&](int k, int m) { return ih(m, vote_column() + k); });
    from_hidden = Panel(units, gates(), bfloat16, pool, [&](int k, int m) { return hh(m, k); });
    for (float** row : {&bias, &active, &coupling, &raw_active, &raw_coupling}) *row = pool.take(gate_row());
    mean = pool.take(pose * gate_row());
    raw_mean = pool.take(gates() * pose_row());
    for (int m = 0; m < gates(); ++m) {
      bias[m] = scale(m) * given_bias[given_row(m)];
      active[m] = scale(m) * (raw_active[m] = ih(m, active_column()));
      coupling[m] = scale(m) * (raw_coupling[m] = ih(m, coupling_column()));
      for (int k = 0; k < pose; ++k)
        mean[k * gate_row() + m] = scale(m) * (raw_mean[m * pose_row() + k] = ih(m, k));
    }
  }

  // What all votes for one output capsule share: bias + W_mu mu, and before the first update the flat coupling's column.
  void share(const float* mu, float flat, float* out) const {
    for (int m = 0; m < gate_row(); m += kLanes) {
      Vec total = load(bias + m) + load(coupling + m) * flat;
      for (int k = 0; k < pose; ++k) total += load(mean + k * gate_row() + m) * mu[k];
      store(out + m, total);
    }
  }

  // From the gates' gradients, summed over the votes of one output capsule, to the gradient of its mean, and to what they
  // add to that of W_mu (`sums`, laid out as raw_mean). All rows are padded to whole vectors.
  void share_backward(const float* totals, const float* mu, float* grad_mu, float* sums) const {
    for (int k = 0; k < pose_row(); k += kLanes) {
      const Vec x = load(mu + k);
      Vec grad[4] = {};
      for (int m = 0; m < gates(); ++m) {
        const int64_t at = m * pose_row() + k;
        grad[m % 4] += load(raw_mean + at) * totals[m];
        store(sums + at, load(sums + at) + x * totals[m]);
      }
      store(grad_mu + k, (grad[0] + grad[1]) + (grad[2] + grad[3]));
    }
  }

  void write_coupling(int blocks, const float* from, float* states) const {
    for (int b = 0; b < blocks; ++b)
      store(states + (b * rows.count() + StateRows::coupling) * kLanes, load(from + b * kLanes));
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
};

// The four gates of one unit.
template <int N>
CAPSROUTE_INLINE void load_gates(const float* from, int stride, Tile<N>& gates) {
  for (int r = 0; r < 4; ++r) gates[r] = load<N>(from + r * kLanes, stride);
}

}  // namespace capsroute
