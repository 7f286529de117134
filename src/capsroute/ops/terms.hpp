// Linear combinations: what every vote's gradient is made of, one number per input times one number per element.
#pragma once

#include "lanes.hpp"

namespace capsroute {

// row [lanes] times vector [elements].
struct Term {
  const float *row, *vector;
};

// acc[k] = sum over terms of row[block ...] * vector[k], for N blocks of lanes by K elements, which share their loads; there
// is at least one term.
template <int N, int K>
CAPSROUTE_INLINE void combine(const Term* terms, int count, int block, int element, Pack<N> (&acc)[K]) {
  const Pack<N> row = load_once<N>(terms[0].row + block * kLanes);
  for (int k = 0; k < K; ++k) acc[k] = row * terms[0].vector[element + k];
  for (int t = 1; t < count; ++t) {
    const Pack<N> row = load_once<N>(terms[t].row + block * kLanes);
    for (int k = 0; k < K; ++k) acc[k] = acc[k] + row * terms[t].vector[element + k];
  }
}

}  // namespace capsroute
