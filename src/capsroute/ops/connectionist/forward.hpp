// The forward pass: one (window, output type) at a time, all its votes at once through each iteration.
#pragma once

#include "window.hpp"

namespace capsroute {
namespace {

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
        shared(pool.take(p.cell.gate_row())) {}
};

template <int N, bool kFirst>
void forward_group(const Prepared& p, const Window& window, int b, const Scratch& s) {
  const Cell& cell = p.cell;
  const int rows = cell.rows.count();
  float* projection = s.projection + b * cell.gate_stride() * kLanes;
  if constexpr (kFirst) cell.project<N>(s.votes + b * cell.pose * kLanes, window.activations + b * kLanes, projection);
  cell.exponents<N, kFirst>(projection, s.shared, s.state + b * rows * kLanes, s.exponents);
  float* hidden = s.next_state + (b * rows + StateRows::hidden) * kLanes;
  const int units = cell.units, stride = cell.gate_stride();
  float* states = s.cell + b * units * kLanes;
  for (int u = 0; u < units; ++u) {
    Tile<N> exponents;
    load_gates<N>(s.exponents + 4 * u * kLanes, stride, exponents);
    store(states + u * kLanes, next_cell<kFirst>(exponents, load<N>(states + u * kLanes, units)), units);
  }
  for (int u = 0; u < units; ++u)
    store(hidden + u * kLanes,
          next_hidden(load<N>(s.exponents + (4 * u + 3) * kLanes, stride), load<N>(states + u * kLanes, units)), rows);
  store(s.score + b * kLanes, p.score.score<N>(hidden, rows, s.activations));
}

void forward_output(const Geometry& g, const Inputs& in, const Prepared& p, const Window& window, Scratch& s, float* mu,
                    float* summary, float* trail) {
  const int blocks = g.blocks(), pose = p.cell.pose;
  weighted_sum(pose, blocks, window.flat, s.votes, mu);
  for (int64_t t = 0; t < in.iterations; ++t, trail += pose) {
    std::copy_n(mu, pose, trail);
    p.cell.share(mu, t ? 0.0f : window.flat_coupling(), s.shared);
    if (t == 0)
      in_groups(blocks, [&](int b, auto n) { forward_group<n, true>(p, window, b, s); });
    else
      in_groups(blocks, [&](int b, auto n) { forward_group<n, false>(p, window, b, s); });
    normalise(blocks, s.score, window.mask, s.coupling);
    std::swap(s.state, s.next_state);
    p.cell.write_coupling(blocks, s.coupling, s.state);
    weighted_sum(pose, blocks, s.coupling, s.votes, mu);
  }
  weighted_sum(p.cell.units, blocks, s.coupling, s.cell, summary);
}

template <class Shape>
void forward(Shape shape, const Geometry& g, const Inputs& in, const Outputs& out) {
  const Prepared p(g, in);
  const int64_t trail_size = in.iterations * g.out();
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

}  // namespace
}  // namespace capsroute
