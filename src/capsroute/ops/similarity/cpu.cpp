// Similarity routing with a Gaussian mixture kernel, without ever storing a vote.
//
// One (window, output type) at a time: its votes are computed into a buffer that fits the first-level cache, routed,
// reduced to one output capsule and dropped. Backward computes them again. README.md has the derivation.
#include "backward.hpp"
#include "forward.hpp"

extern "C" {

// Both return 0, or 1 when the index table names an input that does not exist.
int capsroute_similarity_forward(const capsroute::Geometry* g, const capsroute::Inputs* in,
                                 const capsroute::Outputs* out) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::forward(shape, *g, *in, *out); });
  return 0;
}

int capsroute_similarity_backward(const capsroute::Geometry* g, const capsroute::Inputs* in,
                                  const capsroute::Outputs* out, const capsroute::Gradients* grad) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::backward(shape, *g, *in, *out, *grad); });
  return 0;
}
}
