// What every operator shares: the sizes of a call, memory, threads, and the way between torch's layout and lane blocks.
#pragma once

#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "blocks.hpp"

namespace capsroute {

// The sizes of one call, in the letters of the axis legend. Mirrors `geometry` in native.py.
struct Geometry {
  int64_t batch;      // B
  int64_t inputs;     // N, input capsules of an image
  int64_t positions;  // P
  int64_t window;     // I
  int64_t outputs;    // J
  int64_t rows_out, rows_in, cols;
  int64_t threads;

  int blocks() const { return static_cast<int>((window + kLanes - 1) / kLanes); }
  int lanes() const { return blocks() * kLanes; }
  int64_t in() const { return rows_in * cols; }
  int64_t out() const { return rows_out * cols; }
  int64_t weight() const { return rows_out * rows_in; }
};

// body(shape) with the sizes of the poses: the paper's 4 x 4 as constants, all others at run time.
template <class Body>
inline void with_shape(const Geometry& g, Body body) {
  if (g.rows_out == 4 && g.rows_in == 4 && g.cols == 4)
    body(FixedShape<4, 4, 4>{});
  else
    body(AnyShape(static_cast<int>(g.rows_out), static_cast<int>(g.rows_in), static_cast<int>(g.cols)));
}

// Zeroed floats aligned for any vector; not one more than asked for, so that the sanitisers see what reads beyond.
class Buffer {
 public:
  explicit Buffer(int64_t count) {
    void* data = nullptr;
    if (posix_memalign(&data, 64, std::max<int64_t>(1, count) * sizeof(float))) throw std::bad_alloc();
    data_ = static_cast<float*>(data);
    std::memset(data_, 0, count * sizeof(float));
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  float* get() { return data_; }

 private:
  float* data_;
};

// The scratch memory of one thread, in as many pieces as it asks for.
class Arena {
 public:
  float* take(int64_t count) { return pieces_.emplace_back(std::make_unique<Buffer>(count))->get(); }

 private:
  std::vector<std::unique_ptr<Buffer>> pieces_;
};

// body(thread, begin, end) on contiguous parts of [0, total): which part a thread gets depends on `threads` alone, so
// that sums made per thread and then in the order of threads come out the same every time.
template <class Body>
inline void parallel(int64_t threads, int64_t total, Body body) {
  const int64_t used = std::max<int64_t>(1, std::min(threads, total));
  if (used == 1) {
    body(int64_t{0}, int64_t{0}, total);
    return;
  }
#pragma omp parallel num_threads(static_cast<int>(used))
  {
    // The runtime may give fewer threads than asked for: each then takes several parts.
    for (int64_t part = omp_get_thread_num(); part < used; part += omp_get_num_threads())
      body(part, total * part / used, total * (part + 1) / used);
  }
}

// [window][groups * rows] -> groups x [blocks][rows][kLanes]; lanes beyond the window are zero. For weights
// [I, J, r * r], groups = J; for offsets [I, r * c], groups = 1.
inline void pack(const Geometry& g, const float* from, int64_t groups, int64_t rows, float* to) {
  const int64_t blocks = g.blocks();
  parallel(g.threads, groups, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group)
      for (int64_t block = 0; block < blocks; ++block)
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          const int64_t i = block * kLanes + lane;
          float* at = to + (group * blocks + block) * rows * kLanes + lane;
          for (int64_t row = 0; row < rows; ++row)
            at[row * kLanes] = i < g.window ? from[(i * groups + group) * rows + row] : 0.0f;
        }
  });
}

// The way back, adding `parts` packed arrays (one per thread, `distance` floats apart) in their order.
inline void unpack_sum(const Geometry& g, const float* from, int64_t parts, int64_t distance, int64_t groups,
                       int64_t rows, float* to) {
  const int64_t blocks = g.blocks();
  parallel(g.threads, groups, [&](int64_t, int64_t begin, int64_t end) {
    for (int64_t group = begin; group < end; ++group)
      for (int64_t i = 0; i < g.window; ++i) {
        const int64_t block = i / kLanes, lane = i % kLanes;
        const float* at = from + (group * blocks + block) * rows * kLanes + lane;
        for (int64_t row = 0; row < rows; ++row) {
          float total = 0.0f;
          for (int64_t part = 0; part < parts; ++part) total += at[part * distance + row * kLanes];
          to[(i * groups + group) * rows + row] = total;
        }
      }
  });
}

// out[l][k] = in[k][l] for four quads.
CAPSROUTE_INLINE void transpose(const Quad* in, Quad* out) {
  const IntQuad low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, last = {2, 3, 6, 7};
  const Quad a = __builtin_shuffle(in[0], in[1], low), b = __builtin_shuffle(in[2], in[3], low);
  const Quad c = __builtin_shuffle(in[0], in[1], high), d = __builtin_shuffle(in[2], in[3], high);
  out[0] = __builtin_shuffle(a, b, first);
  out[1] = __builtin_shuffle(a, b, last);
  out[2] = __builtin_shuffle(c, d, first);
  out[3] = __builtin_shuffle(c, d, last);
}

CAPSROUTE_INLINE Quad load_quad(const float* from) {
  Quad x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}

// The poses (or any `rows` <= kMaxPose numbers per input) of one window, [inputs][rows] -> [blocks][rows][kLanes];
// padding gets zeros. Four inputs and four numbers at a time.
CAPSROUTE_PASS void gather(const Geometry& g, const int32_t* index, const float* from, int rows, float* to) {
  static constexpr float kNothing[kMaxPose] = {};
  for (int i = 0; i < g.lanes(); i += 4) {
    float* at = to + static_cast<int64_t>(i / kLanes) * rows * kLanes + i % kLanes;
    const float* source[4];
    for (int l = 0; l < 4; ++l) {
      const int32_t input = i + l < g.window ? index[i + l] : -1;
      source[l] = input < 0 ? kNothing : from + static_cast<int64_t>(input) * rows;
    }
    int k = 0;
    for (; k + 4 <= rows; k += 4) {
      Quad quads[4], turned[4];
      for (int l = 0; l < 4; ++l) quads[l] = load_quad(source[l] + k);
      transpose(quads, turned);
      for (int l = 0; l < 4; ++l) std::memcpy(at + (k + l) * kLanes, &turned[l], sizeof(Quad));
    }
    for (; k < rows; ++k)
      for (int l = 0; l < 4; ++l) at[k * kLanes + l] = source[l][k];
  }
}

// The way back: adds the window's numbers to those of its inputs. A thread owns the image: nothing else writes there.
CAPSROUTE_PASS void scatter_add(const Geometry& g, const int32_t* index, const float* from, int rows, float* to) {
  const int window = static_cast<int>(g.window);
  for (int i = 0; i < window; i += 4) {
    const float* at = from + static_cast<int64_t>(i / kLanes) * rows * kLanes + i % kLanes;
    const int count = std::min(4, window - i);
    int k = 0;
    for (; k + 4 <= rows; k += 4, at += 4 * kLanes) {
      Quad quads[4], turned[4];
      for (int l = 0; l < 4; ++l) quads[l] = load_quad(at + l * kLanes);
      transpose(quads, turned);
      for (int l = 0; l < count; ++l) {
        if (index[i + l] < 0) continue;
        float* row = to + static_cast<int64_t>(index[i + l]) * rows + k;
        const Quad total = load_quad(row) + turned[l];
        std::memcpy(row, &total, sizeof(total));
      }
    }
    for (; k < rows; ++k, at += kLanes)
      for (int l = 0; l < count; ++l)
        if (index[i + l] >= 0) to[static_cast<int64_t>(index[i + l]) * rows + k] += at[l];
  }
}

// Whether every entry of the table is -1 or names an input: all that stands between a wrong table and foreign memory.
inline bool index_fits(const Geometry& g, const int32_t* index) {
  int32_t lowest = 0, highest = -1;
  for (int64_t k = 0; k < g.positions * g.window; ++k) {
    lowest = std::min(lowest, index[k]);
    highest = std::max(highest, index[k]);
  }
  return lowest >= -1 && highest < g.inputs;
}

// mask[i] = 1 for a voter, 0 for padding and for lanes beyond the window; returns the number of voters.
inline int window_mask(const Geometry& g, const int32_t* index, float* mask) {
  const int window = static_cast<int>(g.window);
  int voters = 0;
  for (int i = 0; i < window; ++i) {
    mask[i] = index[i] >= 0 ? 1.0f : 0.0f;
    voters += index[i] >= 0;
  }
  for (int i = window; i < g.lanes(); ++i) mask[i] = 0.0f;
  return voters;
}

}  // namespace capsroute
