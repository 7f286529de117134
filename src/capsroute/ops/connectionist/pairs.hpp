// Products in bfloat16: two numbers, rounded to 16 bits, share a lane, and one instruction multiplies and adds both.
//
// Processors with AVX512-BF16 have that instruction. Elsewhere its effect is computed the long way, which shows what
// rounding costs in accuracy and gains no time.
#pragma once

#include <cstring>
#include <memory>

#include "common.hpp"

namespace capsroute {

#if defined(__AVX512BF16__) && CAPSROUTE_LANES == 16
constexpr bool kHasPairs = true;
#else
constexpr bool kHasPairs = false;
#endif

inline int half(int count) { return (count + 1) / 2; }

// The upper 16 bits after rounding to the nearest, ties to even.
CAPSROUTE_INLINE IntVec rounded_bits(Vec x) {
  const IntVec bits = reinterpret_cast<IntVec>(x);
  return bits + (0x7fff + ((bits >> 16) & 1));
}
CAPSROUTE_INLINE Vec pair(Vec low, Vec high) {
  return reinterpret_cast<Vec>(((rounded_bits(low) >> 16) & 0xffff) | (rounded_bits(high) & ~0xffff));
}
inline float pair(float low, float high) { return pair(splat(low), splat(high))[0]; }

// A scalar's bits in every lane: as a number it may be a signalling NaN, which arithmetic would change.
CAPSROUTE_INLINE Vec splat_bits(float x) {
  int32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return reinterpret_cast<Vec>(bits - IntVec{});
}

// sum + low(a) low(b) + high(a) high(b)
CAPSROUTE_INLINE Vec add_pairs(Vec sum, Vec a, Vec b) {
#if defined(__AVX512BF16__) && CAPSROUTE_LANES == 16
  return _mm512_dpbf16_ps(sum, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b));
#else
  const auto low = [](Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) << 16); };
  const auto high = [](Vec x) { return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(x) & ~0xffff); };
  return sum + low(a) * low(b) + high(a) * high(b);
#endif
}

// Vectors `stride` apart, two by two; an odd one out is paired with zero.
CAPSROUTE_INLINE void pack_pairs(int count, int stride, const float* from, int out_stride, float* to) {
  for (int k = 0; k < count; k += 2) {
    const Vec second = k + 1 < count ? load(from + (k + 1) * stride * kLanes) : Vec{};
    store(to + k / 2 * out_stride * kLanes, pair(load(from + k * stride * kLanes), second));
  }
}

// Vectors for packed operands, of each thread its own, valid until the next call.
inline float* pair_scratch(int64_t vectors) {
  thread_local std::unique_ptr<Buffer> buffer;
  thread_local int64_t size = 0;
  if (size < vectors) {
    buffer = std::make_unique<Buffer>(vectors * kLanes);
    size = vectors;
  }
  return buffer->get();
}

}  // namespace capsroute
