// Arithmetic on blocks of lanes: votes, their backward pass, and sums over a window.
//
// Layout. The inputs i of a window are the SIMD lanes. What each input has R numbers of (a pose, a weight matrix, a
// vote) is kept as [blocks][R][kLanes]: block b holds inputs b * kLanes and up, one vector per number. All numbers of a
// block lie within one constant distance of its start, so the inner loops need one pointer per array. What each input
// has one number of (a coupling, a score) is a plain row [blocks * kLanes].
#pragma once

#include "lanes.hpp"

namespace capsroute {

// Sizes of poses: known to the compiler for the paper's 4 x 4 matrices, or read at run time.
template <int kRowsOut, int kRowsIn, int kCols>
struct FixedShape {
  static constexpr int rows_out = kRowsOut, rows_in = kRowsIn, cols = kCols;
  static constexpr int in = rows_in * cols, out = rows_out * cols, weight = rows_out * rows_in;
};

struct AnyShape {
  int rows_out, rows_in, cols;
  int in, out, weight;
  AnyShape(int rows_out, int rows_in, int cols)
      : rows_out(rows_out),
        rows_in(rows_in),
        cols(cols),
        in(rows_in * cols),
        out(rows_out * cols),
        weight(rows_out * rows_in) {}
};

constexpr int kMaxPose = 64;

// One matrix whose entries are vectors; entry (r, c) is at data + (r * row + c * col) * kLanes.
struct Grid {
  float* data;
  int row, col;
  CAPSROUTE_INLINE float* at(int r, int c) const { return data + (r * row + c * col) * kLanes; }
};

// out[x, y] = (start[x, y] or 0) + sum over k of a[x, k] b[k, y], for a tile small enough to stay in registers.
template <int X, int Y>
CAPSROUTE_INLINE void multiply_tile(int inner, Grid a, Grid b, const Grid* start, Grid out, int x0, int y0) {
  Vec acc[X][Y];
  for (int x = 0; x < X; ++x)
    for (int y = 0; y < Y; ++y) acc[x][y] = start ? load(start->at(x0 + x, y0 + y)) : Vec{};
  for (int k = 0; k < inner; ++k) {
    Vec left[X];
    for (int x = 0; x < X; ++x) left[x] = load_once(a.at(x0 + x, k));
    for (int y = 0; y < Y; ++y) {
      const Vec right = load_once(b.at(k, y0 + y));
      for (int x = 0; x < X; ++x) acc[x][y] += left[x] * right;
    }
  }
  for (int x = 0; x < X; ++x)
    for (int y = 0; y < Y; ++y) store(out.at(x0 + x, y0 + y), acc[x][y]);
}

template <int X>
CAPSROUTE_INLINE void multiply_rows(int inner, int cols, Grid a, Grid b, const Grid* start, Grid out, int x0) {
  int y = 0;
  for (; y + 4 <= cols; y += 4) multiply_tile<X, 4>(inner, a, b, start, out, x0, y);
  for (; y < cols; ++y) multiply_tile<X, 1>(inner, a, b, start, out, x0, y);
}

// The product of two small matrices of vectors: 2 x 4 tiles need 6 loads for 8 multiply-adds and fit 16 registers.
CAPSROUTE_INLINE void multiply(int rows, int inner, int cols, Grid a, Grid b, const Grid* start, Grid out) {
  int x = 0;
  for (; x + 2 <= rows; x += 2) multiply_rows<2>(inner, cols, a, b, start, out, x);
  for (; x < rows; ++x) multiply_rows<1>(inner, cols, a, b, start, out, x);
}

// v = W P (+ offset) for all inputs of a window and one output type. `offset` may be null.
template <class Shape>
CAPSROUTE_PASS void votes(Shape shape, int blocks, const float* weight, const float* window, const float* offset,
                          float* out) {
  for (int b = 0; b < blocks; ++b) {
    const Grid w{const_cast<float*>(weight) + b * shape.weight * kLanes, shape.rows_in, 1};
    const Grid p{const_cast<float*>(window) + b * shape.in * kLanes, shape.cols, 1};
    const Grid v{out + b * shape.out * kLanes, shape.cols, 1};
    if (offset) {
      const Grid start{const_cast<float*>(offset) + b * shape.out * kLanes, shape.cols, 1};
      multiply(shape.rows_out, shape.rows_in, shape.cols, w, p, &start, v);
    } else {
      multiply(shape.rows_out, shape.rows_in, shape.cols, w, p, nullptr, v);
    }
  }
}

// The gradients of v = W P for one lane block: dW += dv P^T, dP += W^T dv, and doffset += dv unless that is null.
template <class Shape>
CAPSROUTE_INLINE void votes_backward_block(Shape shape, const float* weight, const float* window,
                                           const float* grad_votes, float* grad_weight, float* grad_window,
                                           float* grad_offset) {
  const Grid dv{const_cast<float*>(grad_votes), shape.cols, 1};
  const Grid dw{grad_weight, shape.rows_in, 1};
  const Grid dp{grad_window, shape.cols, 1};
  const Grid p_transposed{const_cast<float*>(window), 1, shape.cols};
  const Grid w_transposed{const_cast<float*>(weight), 1, shape.rows_in};
  multiply(shape.rows_out, shape.cols, shape.rows_in, dv, p_transposed, &dw, dw);
  multiply(shape.rows_in, shape.rows_out, shape.cols, w_transposed, dv, &dp, dp);
  if (grad_offset)
    for (int d = 0; d < shape.out; ++d)
      store(grad_offset + d * kLanes, load(grad_offset + d * kLanes) + load(grad_votes + d * kLanes));
}

// The same for a whole window whose vote gradients are all at hand.
template <class Shape>
inline void votes_backward(Shape shape, int blocks, const float* weight, const float* window, const float* grad_votes,
                           float* grad_weight, float* grad_window, float* grad_offset) {
  for (int b = 0; b < blocks; ++b)
    votes_backward_block(shape, weight + b * shape.weight * kLanes, window + b * shape.in * kLanes,
                         grad_votes + b * shape.out * kLanes, grad_weight + b * shape.weight * kLanes,
                         grad_window + b * shape.in * kLanes,
                         grad_offset ? grad_offset + b * shape.out * kLanes : nullptr);
}

// ||v_i - mu||^2 for N blocks of lanes; `rows` points at the first of them. Two sums, since one would wait for itself.
template <int N>
CAPSROUTE_INLINE Pack<N> squared_distance(int size, const float* rows, const float* mu) {
  Pack<N> even = zeros<N>(), odd = zeros<N>();
  int d = 0;
  for (; d + 2 <= size; d += 2) {
    // this way round the load is part of the subtraction
    const Pack<N> gap = mu[d] - load<N>(rows + d * kLanes, size);
    const Pack<N> next = mu[d + 1] - load<N>(rows + (d + 1) * kLanes, size);
    even = even + gap * gap;
    odd = odd + next * next;
  }
  if (d < size) {
    const Pack<N> gap = mu[d] - load<N>(rows + d * kLanes, size);
    even = even + gap * gap;
  }
  return even + odd;
}

// <v_i, g> for N blocks of lanes.
template <int N>
CAPSROUTE_INLINE Pack<N> dot(int size, const float* rows, const float* g) {
  Pack<N> even = zeros<N>(), odd = zeros<N>();
  int d = 0;
  for (; d + 2 <= size; d += 2) {
    even = even + load<N>(rows + d * kLanes, size) * g[d];
    odd = odd + load<N>(rows + (d + 1) * kLanes, size) * g[d + 1];
  }
  if (d < size) even = even + load<N>(rows + d * kLanes, size) * g[d];
  return even + odd;
}

template <int kCount>
CAPSROUTE_INLINE void weighted_sums(int size, int blocks, const float* coupling, const float* rows, float* out) {
  Vec acc[kCount];
  for (int k = 0; k < kCount; ++k) acc[k] = Vec{};
  for (int b = 0; b < blocks; ++b) {
    const Vec c = load(coupling + b * kLanes);
    const float* at = rows + b * size * kLanes;
    for (int k = 0; k < kCount; ++k) acc[k] += c * load(at + k * kLanes);
  }
  if constexpr (kCount % 4 == 0) {
    for (int k = 0; k < kCount; k += 4) sums_of_four(acc + k, out + k);
  } else {
    for (int k = 0; k < kCount; ++k) out[k] = sum(acc[k]);
  }
}

// out[d] = sum over i of coupling[i] rows[i][d], d < size: the weighted sum of a window's votes.
CAPSROUTE_INLINE void weighted_sum(int size, int blocks, const float* coupling, const float* rows, float* out) {
  int d = 0;
  for (; d + 8 <= size; d += 8) weighted_sums<8>(size, blocks, coupling, rows + d * kLanes, out + d);
  for (; d + 4 <= size; d += 4) weighted_sums<4>(size, blocks, coupling, rows + d * kLanes, out + d);
  for (; d < size; ++d) weighted_sums<1>(size, blocks, coupling, rows + d * kLanes, out + d);
}

}  // namespace capsroute
