// Runs the dynamic operator over a grid of odd sizes, for the sanitisers.
#include "dynamic/cpu.cpp"

#include "driver.hpp"

using namespace driver;

static void run(const capsroute::Geometry& g, int64_t iterations, int64_t unit, bool has_offset) {
  const int64_t size = g.rows_out * g.cols, outputs = g.batch * g.positions * g.outputs;
  const auto index = table(g);
  const auto poses = made(g.batch * g.inputs * g.rows_in * g.cols);
  const auto weight = made(g.window * g.outputs * g.rows_out * g.rows_in), offset = made(has_offset ? g.window * size : 0);
  const float sharpness = 1.5f;
  const capsroute::Inputs in{poses.data(), weight.data(), has_offset ? offset.data() : nullptr,
                             index.data(), &sharpness,    iterations,
                             unit};
  auto out_poses = unset(outputs * size), out_logits = unset(outputs), trail = unset(outputs * ((iterations - 1) * size + 1));
  const capsroute::Outputs out{out_poses.data(), out_logits.data(), trail.data()};
  expect(capsroute_dynamic_forward(&g, &in, &out), 0, "dynamic forward");
  expect_finite(out_poses, "dynamic poses");
  expect_finite(out_logits, "dynamic logits");

  const auto grad_poses = made(out_poses.size()), grad_logits = made(out_logits.size());
  auto in_poses = unset(poses.size()), in_weight = unset(weight.size()), in_offset = unset(offset.size());
  const capsroute::Gradients grads{grad_poses.data(), grad_logits.data(), in_poses.data(), in_weight.data(), in_offset.data()};
  expect(capsroute_dynamic_backward(&g, &in, &out, &grads), 0, "dynamic backward");
  for (const auto* values : {&in_poses, &in_weight, &in_offset}) expect_finite(*values, "dynamic gradients");

  auto wrong = index;
  wrong.back() = -2;
  capsroute::Inputs misled = in;
  misled.index = wrong.data();
  expect(capsroute_dynamic_forward(&g, &misled, &out), 1, "dynamic forward with a wrong table");
}

int main() {
  grid([](const capsroute::Geometry& g) {
    for (int64_t unit : {0, 1}) run(g, between(1, 4), unit, between(0, 1) == 1);
  });
}
