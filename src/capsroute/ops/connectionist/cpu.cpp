// Connectionist routing (paper, section 4.2), forward and backward, without ever storing a vote.
//
// One (window, output type) at a time: its votes, and the LSTM's state for each of them, live in buffers of one thread,
// through all iterations. Votes are lanes; matrices are scalars. README.md derives what is computed here.
#include "backward.hpp"
#include "forward.hpp"

extern "C" {

// Whether products in bfloat16 are instructions of the processor that this was compiled for.
int capsroute_connectionist_has_bfloat16() { return capsroute::kHasPairs; }

// Returns 0, or 1 when the index table names an input that does not exist.
int capsroute_connectionist_forward(const capsroute::Geometry* g, const capsroute::Inputs* in,
                                    const capsroute::Outputs* out) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::forward(shape, *g, *in, *out); });
  return 0;
}

int capsroute_connectionist_backward(const capsroute::Geometry* g, const capsroute::Inputs* in,
                                     const capsroute::Outputs* out, const capsroute::Gradients* grad) {
  if (!capsroute::index_fits(*g, in->index)) return 1;
  capsroute::with_shape(*g, [&](auto shape) { capsroute::backward(shape, *g, *in, *out, *grad); });
  return 0;
}
}
