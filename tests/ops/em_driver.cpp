// Runs the EM operator over a grid of odd sizes, for the sanitisers.
#include "em/cpu.cpp"

#include "driver.hpp"

using namespace driver;

static void run(const capsroute::Geometry& g, int64_t steps, int64_t parents, bool has_offset, bool bayes) {
  const int64_t size = g.rows_out * g.cols, outputs = g.batch * g.positions * g.outputs;
  const auto index = table(g);
  const auto poses = made(g.batch * g.inputs * g.rows_in * g.cols), logits = made(g.batch * g.inputs, 3.0f);
  const auto weight = made(g.window * g.outputs * g.rows_out * g.rows_in), offset = made(has_offset ? g.window * size : 0);
  const auto beta_use = made(g.outputs), beta_activate = made(g.outputs), constants = Floats(1 + steps, 1e-2f);
  const capsroute::Prior prior{1.0f, 1.0f, 1.0f, static_cast<float>(size + 1)};
  const capsroute::Inputs in{poses.data(),    logits.data(),        weight.data(),    has_offset ? offset.data() : nullptr,
                             index.data(),    beta_use.data(),      beta_activate.data(), constants.data(),
                             steps,           parents,              bayes ? &prior : nullptr};
  auto out_poses = unset(outputs * size), out_logits = unset(outputs), trail = unset(outputs * steps * ((bayes ? 4 : 2) * size + 3)),
       shares = unset(g.batch * (steps - 1) * g.positions * 2 * g.window);
  const capsroute::Outputs out{out_poses.data(), out_logits.data(), trail.data(), shares.data()};
  expect(capsroute_em_forward(&g, &in, &out), 0, "em forward");
  expect_finite(out_poses, "em poses");
  expect_finite(out_logits, "em logits");

  const auto grad_poses = made(out_poses.size()), grad_logits = made(out_logits.size());
  auto in_poses = unset(poses.size()), in_logits = unset(logits.size()), in_weight = unset(weight.size()),
       in_offset = unset(offset.size()), in_use = unset(g.outputs), in_activate = unset(g.outputs);
  const capsroute::Gradients grads{grad_poses.data(), grad_logits.data(), in_poses.data(), in_logits.data(),
                                   in_weight.data(),  in_offset.data(),   in_use.data(),   in_activate.data()};
  expect(capsroute_em_backward(&g, &in, &out, &grads), 0, "em backward");
  for (const auto* values : {&in_poses, &in_logits, &in_weight, &in_offset, &in_use, &in_activate})
    expect_finite(*values, "em gradients");

  auto wrong = index;
  wrong.back() = static_cast<int32_t>(g.inputs);
  capsroute::Inputs misled = in;
  misled.index = wrong.data();
  expect(capsroute_em_forward(&g, &misled, &out), 1, "em forward with a wrong table");
}

int main() {
  grid([](const capsroute::Geometry& g) {
    for (int64_t parents : {0, 1})
      for (bool bayes : {false, true}) run(g, between(1, 4), parents, between(0, 1) == 1, bayes);
  });
}
