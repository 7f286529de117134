// Products of small matrices with votes: the votes are lanes, so an entry of a matrix is a scalar, broadcast to all of them.
//
// A panel is a matrix cut into strips of four rows, [rows / 4][inner][4]: the four scalars of one step lie side by side.
// Missing rows of the last strip are zero, so that every product has a multiple of four rows.
#pragma once

#include <deque>

#include "common.hpp"
#include "pairs.hpp"

namespace capsroute {

constexpr int kStrip = 4;
// The most blocks of lanes that go through the products together. Two are enough to keep both multiply-add units busy (4 x 2
// sums in flight, as many as the units have stages), one is not: an odd block out joins the last pair.
constexpr int kGroup = 3;

// Zeroed buffers that live as long as their owner.
class Pool {
 public:
  float* take(int64_t count) { return buffers_.emplace_back(count).get(); }

 private:
  std::deque<Buffer> buffers_;
};

inline int padded(int rows) { return (rows + kStrip - 1) / kStrip * kStrip; }

struct Panel {
  int rows = 0, inner = 0;  // rows padded
  float* data = nullptr;
  float* pairs = nullptr;  // [rows / 4][half of inner][4]: columns two by two in bfloat16, where products are to use these

  Panel() = default;
  // entry(row, column) gives the matrix.
  template <class Entry>
  Panel(int given_rows, int inner, bool bfloat16, Pool& pool, Entry entry)
      : rows(padded(given_rows)), inner(inner), data(pool.take(static_cast<int64_t>(rows) * inner)) {
    for (int row = 0; row < given_rows; ++row)
      for (int k = 0; k < inner; ++k) data[at(row, k, inner)] = entry(row, k);
    if (!bfloat16) return;
    pairs = pool.take(static_cast<int64_t>(rows) * half(inner));
    for (int row = 0; row < given_rows; ++row)
      for (int k = 0; k < inner; k += 2)
        pairs[at(row, k / 2, half(inner))] = pair(entry(row, k), k + 1 < inner ? entry(row, k + 1) : 0.0f);
  }
  static int64_t at(int row, int k, int inner) {
    return static_cast<int64_t>(row / kStrip * kStrip) * inner + k * kStrip + row % kStrip;
  }
};

template <int N>
using Tile = Pack<N>[kStrip];

// out[n][row] += sum over k of panel[row][k] x[n][k], operands rounded to bfloat16.
template <int N>
__attribute__((noinline)) void add_product_of_pairs(const Panel& panel, const float* x, int x_stride, float* out,
                                                    int out_stride) {
  const int inner = half(panel.inner);
  float* packed = pair_scratch(static_cast<int64_t>(N) * inner);
  for (int n = 0; n < N; ++n)
    pack_pairs(panel.inner, 1, x + n * x_stride * kLanes, 1, packed + n * inner * kLanes);
  const float* strip = panel.pairs;
  for (int row = 0; row < panel.rows; row += kStrip, strip += kStrip * inner) {
    Tile<N> sums;
    for (int r = 0; r < kStrip; ++r) sums[r] = load<N>(out + (row + r) * kLanes, out_stride);
    for (int k = 0; k < inner; ++k)
      for (int n = 0; n < N; ++n) {
        const Vec right = load_once(packed + (n * inner + k) * kLanes);
        for (int r = 0; r < kStrip; ++r) sums[r][n] = add_pairs(sums[r][n], right, splat_bits(strip[k * kStrip + r]));
      }
    for (int r = 0; r < kStrip; ++r) store(out + (row + r) * kLanes, sums[r], out_stride);
  }
}

// out[n][row] = finish(row, start(row) + sum over k of panel[row][k] x[n][k]). The blocks of x and out lie so many vectors
// apart as their strides say; `start` and `finish` work on one row of all N blocks.
template <int N, class Start, class Finish>
CAPSROUTE_INLINE void multiply(const Panel& panel, const float* x, int x_stride, float* out, int out_stride, Start start,
                               Finish finish) {
  if (panel.pairs) {
    for (int row = 0; row < panel.rows; ++row) store(out + row * kLanes, start(row), out_stride);
    add_product_of_pairs<N>(panel, x, x_stride, out, out_stride);
    for (int row = 0; row < panel.rows; ++row)
      store(out + row * kLanes, finish(row, load<N>(out + row * kLanes, out_stride)), out_stride);
    return;
  }
  const float* strip = panel.data;
  for (int row = 0; row < panel.rows; row += kStrip, strip += kStrip * panel.inner) {
    Tile<N> sums;
    for (int r = 0; r < kStrip; ++r) sums[r] = start(row + r);
    for (int k = 0; k < panel.inner; ++k) {
      Pack<N> right;
      for (int n = 0; n < N; ++n) right[n] = load_once(x + (k + n * x_stride) * kLanes);
      for (int r = 0; r < kStrip; ++r)
        for (int n = 0; n < N; ++n) sums[r][n] += right[n] * strip[k * kStrip + r];
    }
    for (int r = 0; r < kStrip; ++r) store(out + (row + r) * kLanes, finish(row + r, sums[r]), out_stride);
  }
}

// A product with a single row of `inner` (a multiple of four) entries.
template <int N>
CAPSROUTE_INLINE Pack<N> multiply_row(int inner, const float* row, const float* x, int x_stride) {
  Tile<N> sums = {};
  for (int k = 0; k < inner; k += kStrip)
    for (int r = 0; r < kStrip; ++r) sums[r] = sums[r] + load<N>(x + (k + r) * kLanes, x_stride) * row[k + r];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// body(first, n) for all of [0, count), in pairs; an odd one out joins the last pair.
template <class Body>
CAPSROUTE_INLINE void in_groups(int count, Body body) {
  int first = 0;
  for (; count - first > kGroup || count - first == 2; first += 2) body(first, std::integral_constant<int, 2>{});
  if (count - first == kGroup) body(first, std::integral_constant<int, kGroup>{});
  if (count - first == 1) body(first, std::integral_constant<int, 1>{});
}

template <int N, bool kPairs>
CAPSROUTE_INLINE void add_outer_tile(int blocks, const float* left, int left_stride, const float* right, int right_stride,
                                     float* sums) {
  Tile<N> tile = {};
  for (int b = 0; b < blocks; ++b) {
    Pack<N> x;
    for (int n = 0; n < N; ++n) x[n] = load_once(right + (b * right_stride + n) * kLanes);
    for (int r = 0; r < kStrip; ++r) {
      const Vec g = load_once(left + (b * left_stride + r) * kLanes);
      for (int n = 0; n < N; ++n) tile[r][n] = kPairs ? add_pairs(tile[r][n], x[n], g) : tile[r][n] + g * x[n];
    }
  }
  // Added at the end, not begun with: short sums added up lose less than one long sum.
  for (int n = 0; n < N; ++n)
    for (int r = 0; r < kStrip; ++r) {
      float* at = sums + (n * kStrip + r) * kLanes;
      store(at, load(at) + tile[r][n]);
    }
}

// sums += the gradient of a panel: left[b][row] right[b][k] summed over blocks, but not yet over lanes; in a panel's layout.
template <bool kPairs = false>
__attribute__((noinline)) void add_outer(int blocks, int rows, const float* left, int left_stride, int inner,
                                         const float* right, int right_stride, float* sums) {
  for (int row = 0; row < rows; row += kStrip, sums += kStrip * inner * kLanes)
    in_groups(inner, [&](int k, auto n) __attribute__((always_inline)) {
      add_outer_tile<n, kPairs>(blocks, left + row * kLanes, left_stride, right + k * kLanes, right_stride,
                                sums + k * kStrip * kLanes);
    });
}

// The same from operands rounded to bfloat16, two blocks at a time.
inline void add_outer_of_pairs(int blocks, int rows, const float* left, int left_stride, int inner, const float* right,
                               int right_stride, float* sums) {
  float* packed_left = pair_scratch(static_cast<int64_t>(half(blocks)) * (rows + inner));
  float* packed_right = packed_left + half(blocks) * rows * kLanes;
  for (int row = 0; row < rows; ++row)
    pack_pairs(blocks, left_stride, left + row * kLanes, rows, packed_left + row * kLanes);
  for (int k = 0; k < inner; ++k)
    pack_pairs(blocks, right_stride, right + k * kLanes, inner, packed_right + k * kLanes);
  add_outer<true>(half(blocks), rows, packed_left, rows, inner, packed_right, inner, sums);
}

using AddOuter = decltype(&add_outer_of_pairs);

}  // namespace capsroute
