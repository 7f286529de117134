// The E-step: from scores to couplings, over the types of a window or over all parents of a child.
#pragma once

#include "competition.hpp"
#include "plan.hpp"

namespace capsroute {
namespace {

class EStep {
 public:
  explicit EStep(const Plan& plan)
      : bases(plan.g.outputs),
        plan_(plan),
        scores_(plan.edges),
        peaks_(plan.group * plan.g.lanes()),
        totals_(plan.group * plan.g.lanes()),
        factors_(plan.group * plan.g.lanes()),
        children_(2 * plan.g.inputs) {}

  // Scores in base 2 without their bases, and at the end what becomes the weights of the next M-step times `factor`.
  float* scores(int64_t p, int64_t j) { return scores_.get() + (p * plan_.g.outputs + j) * plan_.g.lanes(); }
  float* factor(int64_t p) { return row(factors_, p); }

  // To be called when all scores of a position and the bases [J] of its output types are there.
  void close(int64_t p) {
    const int lanes = plan_.g.lanes();
    for (int64_t j = 0; j < plan_.g.outputs; ++j)
      for (int i = 0; i < lanes; i += kLanes) store(scores(p, j) + i, load(scores(p, j) + i) + bases.get()[j]);
    exponentials(plan_.g.outputs, lanes, scores(p, 0), row(peaks_, p), row(totals_, p));
    std::fill_n(factor(p), lanes, 1.0f);
  }

  // To be called when all positions are closed.
  void normalise(Windows& windows, int64_t image, int64_t t, int64_t first) {
    const Geometry& g = plan_.g;
    if (plan_.in.parents) meet();
    for (int64_t p = 0; p < plan_.group; ++p) {
      for (int i = 0; i < g.lanes(); i += kLanes) {
        const Vec inverse = 1.0f / load(row(totals_, p) + i);
        store(row(totals_, p) + i, inverse);
        store(factor(p) + i, load(factor(p) + i) * inverse * load(windows.activations(p) + i));
      }
      float* shares = plan_.shares(image, t, first + p);
      std::copy_n(row(peaks_, p), g.window, shares);
      std::copy_n(row(totals_, p), g.window, shares + g.window);
    }
  }

  Buffer bases;
  double origin = 0.0;  // from which the bases are counted

 private:
  float* row(Buffer& of, int64_t p) { return of.get() + p * plan_.g.lanes(); }

  // From peaks and totals over the types of each position to those over all parents of each child. `factor` becomes what
  // exponentials counted from a position's peak are multiplied by to count from the child's.
  void meet() {
    const Geometry& g = plan_.g;
    float *peak = children_.get(), *total = peak + g.inputs;
    std::fill_n(peak, g.inputs, -INFINITY);
    std::fill_n(total, g.inputs, 0.0f);
    plan_.each_edge([&](int32_t child, int64_t at) { peak[child] = std::max(peak[child], peaks_.get()[at]); });
    std::copy_n(peaks_.get(), g.positions * g.lanes(), factors_.get());
    plan_.each_edge([&](int32_t child, int64_t at) { peaks_.get()[at] = peak[child]; });
    for (int64_t k = 0; k < g.positions * g.lanes(); k += kLanes) {
      const Vec down = exp2(load(factors_.get() + k) - load(peaks_.get() + k));
      store(factors_.get() + k, down);
      store(totals_.get() + k, load(totals_.get() + k) * down);
    }
    plan_.each_edge([&](int32_t child, int64_t at) { total[child] += totals_.get()[at]; });
    plan_.each_edge([&](int32_t child, int64_t at) { totals_.get()[at] = total[child]; });
  }

  const Plan& plan_;
  Buffer scores_;                     // [group][J][lanes]
  Buffer peaks_, totals_, factors_;   // [group][lanes]
  Buffer children_;                   // [N] peaks, then [N] totals
};

}  // namespace
}  // namespace capsroute
