// What the sanitisers' drivers share: a grid of odd sizes, and arrays that end where they should.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common.hpp"

namespace driver {

using Floats = std::vector<float>;

inline std::mt19937& random_bits() {
  static std::mt19937 bits(1);
  return bits;
}

inline int64_t between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random_bits());
}

// Normal numbers; a block of memory of its own, so that one read beyond it is seen.
inline Floats made(int64_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  Floats values(count);
  for (float& x : values) x = normal(random_bits());
  return values;
}

// NaN, so that a number which is never written is seen.
inline Floats unset(int64_t count) { return Floats(count, std::numeric_limits<float>::quiet_NaN()); }

inline void expect_finite(const Floats& values, const char* what) {
  for (float x : values)
    if (!std::isfinite(x)) {
      std::fprintf(stderr, "%s: a number is %f\n", what, x);
      std::exit(1);
    }
}

inline void expect(int actual, int expected, const char* what) {
  if (actual == expected) return;
  std::fprintf(stderr, "%s returned %d instead of %d\n", what, actual, expected);
  std::exit(1);
}

// A window table with padding, and now and then a window of nothing else.
inline std::vector<int32_t> table(const capsroute::Geometry& g) {
  std::vector<int32_t> index(g.positions * g.window);
  for (int64_t p = 0; p < g.positions; ++p) {
    const bool nothing = between(0, 4) == 0;
    for (int64_t i = 0; i < g.window; ++i)
      index[p * g.window + i] = nothing ? -1 : static_cast<int32_t>(between(-1, g.inputs - 1));
  }
  return index;
}

// body(geometry) for odd sizes: empty and single batches, windows of fewer, as many and more inputs than a vector has
// lanes, every kind of pose, one thread and several.
template <class Body>
inline void grid(Body body) {
  const int64_t shapes[][3] = {{4, 4, 4}, {1, 1, 1}, {5, 3, 2}, {8, 8, 8}, {7, 2, 1}, {1, 8, 8}};
  for (int64_t window : {1, 3, 4, 8, 9, 16, 17, 35})
    for (const auto& shape : shapes)
      for (int64_t threads : {1, 2}) {
        const capsroute::Geometry g{between(0, 3),   between(1, 40), between(1, 5), window, between(1, 6),
                                    shape[0], shape[1],       shape[2],      threads};
        body(g);
      }
  body(capsroute::Geometry{2, 30, 3, 150, 33, 4, 4, 4, 2});
  std::puts("clean");
}

}  // namespace driver
