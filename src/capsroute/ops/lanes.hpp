// Vectors of the compile-time width, and the few functions of them that every operator needs.
//
// GCC's vector types give the same source SSE (4 lanes), AVX2 (8) and AVX-512 (16) code. Arithmetic is plain
// `a * b + c`, which -ffp-contract=fast turns into fused multiply-adds.
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__SSE__)
#include <immintrin.h>
#endif

#if !defined(CAPSROUTE_LANES)  // tests compile the 16-lane code for narrower machines
#if defined(__AVX512F__)
#define CAPSROUTE_LANES 16
#elif defined(__AVX__)
#define CAPSROUTE_LANES 8
#else
#define CAPSROUTE_LANES 4
#endif
#endif

#define CAPSROUTE_INLINE inline __attribute__((always_inline))
// A loop over a window stays a function of its own: inlined side by side, such loops compete for registers.
#define CAPSROUTE_PASS inline __attribute__((noinline))

namespace capsroute {

constexpr int kLanes = CAPSROUTE_LANES;

typedef float Vec __attribute__((vector_size(kLanes * 4)));
typedef uint32_t IntVec __attribute__((vector_size(kLanes * 4)));  // unsigned: exponents may wrap around
typedef float Quad __attribute__((vector_size(16)));
typedef int32_t IntQuad __attribute__((vector_size(16)));
typedef float VecInMemory __attribute__((vector_size(kLanes * 4), may_alias));

CAPSROUTE_INLINE Vec load(const float* from) { return *reinterpret_cast<const VecInMemory*>(from); }
// The same, and in a register from here on: GCC would rather load again at every use, and these loops wait for loads.
CAPSROUTE_INLINE Vec load_once(const float* from) {
  Vec x = load(from);
#if defined(__AVX512F__) || (defined(__AVX__) && CAPSROUTE_LANES <= 8) || (defined(__SSE__) && CAPSROUTE_LANES <= 4)
  asm("" : "+v"(x));  // where a register holds a vector
#endif
  return x;
}
CAPSROUTE_INLINE void store(float* to, Vec x) { *reinterpret_cast<VecInMemory*>(to) = x; }
CAPSROUTE_INLINE Vec splat(float x) { return x - Vec{}; }  // x + 0 would cost an addition: it may change the sign of -0

// a > b ? a : b and a < b ? a : b, lane by lane; b where either is NaN. x86 has instructions for exactly this, which
// GCC does not find by itself.
CAPSROUTE_INLINE Vec larger(Vec a, Vec b) {
#if defined(__AVX512F__) && CAPSROUTE_LANES == 16
  return _mm512_max_ps(a, b);
#elif defined(__AVX__) && CAPSROUTE_LANES == 8
  return _mm256_max_ps(a, b);
#elif defined(__SSE__) && CAPSROUTE_LANES == 4
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
CAPSROUTE_INLINE Vec smaller(Vec a, Vec b) {
#if defined(__AVX512F__) && CAPSROUTE_LANES == 16
  return _mm512_min_ps(a, b);
#elif defined(__AVX__) && CAPSROUTE_LANES == 8
  return _mm256_min_ps(a, b);
#elif defined(__SSE__) && CAPSROUTE_LANES == 4
  return _mm_min_ps(a, b);
#else
  return a < b ? a : b;
#endif
}
// In this order a NaN in `x` survives: a diverged training must be seen.
CAPSROUTE_INLINE Vec at_least(float bound, Vec x) { return larger(splat(bound), x); }
CAPSROUTE_INLINE Vec at_most(float bound, Vec x) { return smaller(splat(bound), x); }

// The whole number nearest to x, which is small, as a float; `bits` has it in its low bits, as an integer.
CAPSROUTE_INLINE Vec nearest(Vec x, IntVec* bits) {
#if defined(__AVX__) && CAPSROUTE_LANES == 8  // as many instructions as below, but on units that exp2 leaves idle
  const Vec whole = _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  *bits = reinterpret_cast<IntVec>(_mm256_cvtps_epi32(whole));
  return whole;
#else
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: beyond it, floats are whole
  const Vec shifted = x + kRound;
  // of a NaN, zero: its low bits, which may be anything, would make a number of it in exp2
  *bits = reinterpret_cast<IntVec>(shifted) & reinterpret_cast<IntVec>(shifted == shifted);
  return shifted - kRound;
#endif
}

// 2^x for x <= 127, within 8e-8 of the true value, as good as a library, and exactly 0 for x <= -127.
//
// x = n + f with |f| <= 1/2; n goes into the exponent by a shift. The polynomial's constant is exactly 1, so at the
// clamp (n = -127, f = 0) all bits of the result are zero.
CAPSROUTE_INLINE Vec exp2(Vec x) {
  x = at_least(-127.0f, x);
  IntVec n;
  const Vec f = x - nearest(x, &n);
  Vec p = f * 0.00015353361959569156f + 0.0013398875016719103f;
  p = p * f + 0.00961843691766262f;
  p = p * f + 0.055503323674201965f;
  p = p * f + 0.24022647738456726f;
  p = p * f + 0.6931471824645996f;
  p = p * f + 1.0f;
  return reinterpret_cast<Vec>(reinterpret_cast<IntVec>(p) + (n << 23));
}

constexpr float kLog2E = 1.4426950408889634f;
constexpr float kLn2 = 0.6931471805599453f;

// e^x for any x; what would overflow stays at the largest power, about 2.2e38.
CAPSROUTE_INLINE Vec exp(Vec x) { return exp2(at_most(127.4f, x * kLog2E)); }

// The sum of all lanes, always in the same order; and their largest value.
template <class Combine>
CAPSROUTE_INLINE float reduce(Vec x, Combine combine) {
  Quad piece[kLanes / 4];
  __builtin_memcpy(piece, &x, sizeof(x));
  for (int width = kLanes / 8; width > 0; width /= 2)
    for (int p = 0; p < width; ++p) piece[p] = combine(piece[p], piece[p + width]);
  Quad quad = combine(piece[0], __builtin_shuffle(piece[0], IntQuad{2, 3, 2, 3}));
  quad = combine(quad, __builtin_shuffle(quad, IntQuad{1, 1, 1, 1}));
  return quad[0];
}
CAPSROUTE_INLINE float sum(Vec x) {
  return reduce(x, [](Quad a, Quad b) __attribute__((always_inline)) { return a + b; });
}
CAPSROUTE_INLINE float largest(Vec x) {
  return reduce(x, [](Quad a, Quad b) __attribute__((always_inline)) { return a > b ? a : b; });
}

// Several vectors side by side, so that what is loaded once (a weight, a mean) serves all of them.
template <int N>
struct Pack {
  Vec part[N];

  CAPSROUTE_INLINE Vec& operator[](int k) { return part[k]; }
  CAPSROUTE_INLINE const Vec& operator[](int k) const { return part[k]; }
  CAPSROUTE_INLINE Vec total() const {
    Vec all = part[0];
    for (int k = 1; k < N; ++k) all += part[k];
    return all;
  }
};

#define CAPSROUTE_PACK_OPERATOR(op)                                          \
  template <int N>                                                           \
  CAPSROUTE_INLINE Pack<N> operator op(const Pack<N>& a, const Pack<N>& b) { \
    Pack<N> r;                                                               \
    for (int k = 0; k < N; ++k) r[k] = a[k] op b[k];                         \
    return r;                                                                \
  }                                                                          \
  template <int N>                                                           \
  CAPSROUTE_INLINE Pack<N> operator op(const Pack<N>& a, float b) {          \
    const Vec s = splat(b);                                                  \
    Pack<N> r;                                                               \
    for (int k = 0; k < N; ++k) r[k] = a[k] op s;                            \
    return r;                                                                \
  }
CAPSROUTE_PACK_OPERATOR(+)
CAPSROUTE_PACK_OPERATOR(-)
CAPSROUTE_PACK_OPERATOR(*)
#undef CAPSROUTE_PACK_OPERATOR

template <int N>
CAPSROUTE_INLINE Pack<N> operator-(float a, const Pack<N>& b) {
  const Vec s = splat(a);
  Pack<N> r;
  for (int k = 0; k < N; ++k) r[k] = s - b[k];
  return r;
}

template <int N>
CAPSROUTE_INLINE Pack<N> zeros() {
  Pack<N> r;
  for (int k = 0; k < N; ++k) r[k] = Vec{};
  return r;
}

template <int N>
CAPSROUTE_INLINE Pack<N> exp2(const Pack<N>& x) {
  Pack<N> r;
  for (int k = 0; k < N; ++k) r[k] = exp2(x[k]);
  return r;
}

// x where the mask is 1, and 0 where it is 0, whatever x is there.
template <int N>
CAPSROUTE_INLINE Pack<N> where(const Pack<N>& mask, const Pack<N>& x) {
  Pack<N> r;
  for (int k = 0; k < N; ++k) r[k] = mask[k] > 0.0f ? x[k] : Vec{};
  return r;
}

// `stride` vectors lie between the parts: 1 in a row of scalars, the row count in a block of rows.
template <int N>
CAPSROUTE_INLINE Pack<N> load(const float* from, int stride = 1) {
  Pack<N> r;
  for (int k = 0; k < N; ++k) r[k] = load(from + k * stride * kLanes);
  return r;
}

template <int N>
CAPSROUTE_INLINE Pack<N> load_once(const float* from, int stride = 1) {
  Pack<N> r;
  for (int k = 0; k < N; ++k) r[k] = load_once(from + k * stride * kLanes);
  return r;
}

template <int N>
CAPSROUTE_INLINE void store(float* to, const Pack<N>& x, int stride = 1) {
  for (int k = 0; k < N; ++k) store(to + k * stride * kLanes, x[k]);
}

// body(block, n) over all blocks of lanes, n of them at a time: kPack as often as it fits, then one by one.
// `n` is a std::integral_constant, so that the body can say load<n>(...).
template <int kPack, class Body>
CAPSROUTE_INLINE void sweep(int blocks, Body body) {
  int block = 0;
  for (; block + kPack <= blocks; block += kPack) body(block, std::integral_constant<int, kPack>{});
  for (; block < blocks; ++block) body(block, std::integral_constant<int, 1>{});
}

// out[k] = the sum of the lanes of x[k], for four vectors at once: a transposing tree, far cheaper than four sums.
CAPSROUTE_INLINE void sums_of_four(const Vec* x, float* out) {
  Quad quad[4];
  for (int k = 0; k < 4; ++k) {
    Quad piece[kLanes / 4];
    __builtin_memcpy(piece, &x[k], sizeof(Vec));
    quad[k] = piece[0];
    for (int p = 1; p < kLanes / 4; ++p) quad[k] += piece[p];
  }
  const IntQuad low = {0, 4, 1, 5}, high = {2, 6, 3, 7}, first = {0, 1, 4, 5}, last = {2, 3, 6, 7};
  const Quad ab = __builtin_shuffle(quad[0], quad[1], low) + __builtin_shuffle(quad[0], quad[1], high);
  const Quad cd = __builtin_shuffle(quad[2], quad[3], low) + __builtin_shuffle(quad[2], quad[3], high);
  const Quad all = __builtin_shuffle(ab, cd, first) + __builtin_shuffle(ab, cd, last);
  __builtin_memcpy(out, &all, sizeof(all));
}

}  // namespace capsroute
