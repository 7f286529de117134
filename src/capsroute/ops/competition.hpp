// Couplings that compete over the output types of a window: the pieces of a softmax over rows.
#pragma once

#include "lanes.hpp"

namespace capsroute {

// Scores in base 2, rows [J][lanes], become their exponentials counted from the largest of each lane, in place;
// `peak` and `total` [lanes] get that largest score and the sum of the exponentials.
inline void exponentials(int64_t outputs, int lanes, float* rows, float* peak, float* total) {
  for (int i = 0; i < lanes; i += kLanes) {
    Vec top = load(rows + i);
    for (int64_t j = 1; j < outputs; ++j) top = larger(load(rows + j * lanes + i), top);
    Vec all = {};
    for (int64_t j = 0; j < outputs; ++j) {
      const Vec e = exp2(load(rows + j * lanes + i) - top);
      store(rows + j * lanes + i, e);
      all += e;
    }
    store(peak + i, top);
    store(total + i, all);
  }
}

}  // namespace capsroute
