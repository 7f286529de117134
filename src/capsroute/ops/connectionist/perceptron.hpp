// f: the perceptron that scores a vote from its hidden state, over blocks of votes.
#pragma once

#include "products.hpp"

namespace capsroute {

template <int N>
CAPSROUTE_INLINE Pack<N> positive(Pack<N> x) {
  for (int n = 0; n < N; ++n) x[n] = at_least(0.0f, x[n]);
  return x;
}
template <int N>
CAPSROUTE_INLINE Pack<N> where_positive(const Pack<N>& sign, const Pack<N>& value) {
  Pack<N> r;
  for (int n = 0; n < N; ++n) r[n] = sign[n] > 0.0f ? value[n] : Vec{};
  return r;
}

// The activations of a block's hidden layers lie one after the other. Each layer has its rows, padded to whole strips, then
// a row of ones: its products with the gradients of the next layer are the gradients of biases.
struct Perceptron {
  struct Layer {
    int width, inputs;        // as given
    int first;                // the row at which its activations start
    Panel forward, backward;  // [width][inputs] and its transpose
    const float* bias;        // padded
    int columns() const { return padded(inputs) + 1; }  // of its gradient: the inputs and the ones
  };
  std::vector<Layer> layers;
  int rows = 0;       // of all activations of a block, the ones included
  int last_inputs = 0, last_rows = 0;  // of the layer that the output reads; padded
  const float* last;  // the output's weights, padded
  float last_bias;
  AddOuter outer;

  // `given`: weights [width, inputs] and biases of each layer, one after the other, then those of the output.
  Perceptron(const float* given, const int64_t* widths, int64_t count, int inputs, bool bfloat16, Pool& pool)
      : outer(bfloat16 ? add_outer_of_pairs : add_outer<>) {
    const auto take_padded = [&](int size) {
      float* at = pool.take(padded(size));
      std::copy_n(given, size, at);
      given += size;
      return at;
    };
    for (int64_t l = 0; l < count; ++l) {
      Layer layer{static_cast<int>(widths[l]), inputs, rows, {}, {}, nullptr};
      const float* matrix = given;
      layer.forward = Panel(layer.width, inputs, bfloat16, pool, [=](int m, int k) { return matrix[m * inputs + k]; });
      layer.backward = Panel(inputs, layer.width, bfloat16, pool, [=](int k, int m) { return matrix[m * inputs + k]; });
      given += layer.width * inputs;
      layer.bias = take_padded(layer.width);
      rows += padded(layer.width) + 1;
      inputs = layer.width;
      layers.push_back(layer);
    }
    last_inputs = inputs;
    last_rows = padded(inputs);
    last = take_padded(inputs);
    last_bias = *given;
  }

  // To be called once for every block of an activation buffer, which is otherwise zero.
  void write_ones(float* activations) const {
    for (const Layer& layer : layers) store(activations + (layer.first + padded(layer.width)) * kLanes, splat(1.0f));
  }

  template <int N>
  Pack<N> score(const float* hidden, int hidden_stride, float* activations) const {
    const float* x = hidden;
    int stride = hidden_stride;
    for (const Layer& layer : layers) {
      float* y = activations + layer.first * kLanes;
      multiply<N>(
          layer.forward, x, stride, y, rows,
          [&](int m) __attribute__((always_inline)) { return zeros<N>() + layer.bias[m]; },
          [](int, const Pack<N>& sum) __attribute__((always_inline)) { return positive(sum); });
      x = y;
      stride = rows;
    }
    return multiply_row<N>(last_rows, last, x, stride) + last_bias;
  }

  // From the gradient of the score to those of the layers before their ReLU (`deltas`, laid out as the activations) and of
  // the hidden state, which is added to. `last_sums` has one vector for each weight of the output.
  template <int N>
  void backward(const Pack<N>& grad, const float* hidden, int hidden_stride, const float* activations, float* deltas,
                float* grad_hidden, int grad_stride, float* last_sums) const {
    const bool deep = !layers.empty();
    const float* x = deep ? activations + layers.back().first * kLanes : hidden;
    const int stride = deep ? rows : hidden_stride;
    for (int k = 0; k < last_rows; ++k) {
      const Pack<N> value = load<N>(x + k * kLanes, stride), slope = grad * last[k];
      store(last_sums + k * kLanes, load(last_sums + k * kLanes) + (value * grad).total());
      float* to = (deep ? deltas + layers.back().first * kLanes : grad_hidden) + k * kLanes;
      if (deep)
        store(to, where_positive(value, slope), rows);
      else
        store(to, load<N>(to, grad_stride) + slope, grad_stride);
    }
    for (size_t l = layers.size(); l-- > 1;) {
      const float* active = activations + layers[l - 1].first * kLanes;
      multiply<N>(
          layers[l].backward, deltas + layers[l].first * kLanes, rows, deltas + layers[l - 1].first * kLanes, rows,
          [](int) __attribute__((always_inline)) { return zeros<N>(); },
          [&](int k, const Pack<N>& sum) __attribute__((always_inline)) {
            return where_positive(load<N>(active + k * kLanes, rows), sum);
          });
    }
    if (deep)
      multiply<N>(
          layers[0].backward, deltas, rows, grad_hidden, grad_stride,
          [&](int k) __attribute__((always_inline)) { return load<N>(grad_hidden + k * kLanes, grad_stride); },
          [](int, const Pack<N>& sum) __attribute__((always_inline)) { return sum; });
  }

  // Gradients of the weights, as vectors whose lanes are to be summed: the layers', then the output's.
  int64_t gradient_vectors() const { return last_sums_at() + last_rows; }
  int64_t last_sums_at() const {
    int64_t total = 0;
    for (const Layer& layer : layers) total += static_cast<int64_t>(padded(layer.width)) * layer.columns();
    return total;
  }

  void add_gradients(int blocks, const float* hidden, int hidden_stride, const float* activations, const float* deltas,
                     float* sums) const {
    const float* x = hidden;
    int stride = hidden_stride;
    for (const Layer& layer : layers) {
      outer(blocks, padded(layer.width), deltas + layer.first * kLanes, rows, layer.columns(), x, stride, sums);
      sums += static_cast<int64_t>(padded(layer.width)) * layer.columns() * kLanes;
      x = activations + layer.first * kLanes;
      stride = rows;
    }
  }

  // The same numbers, summed, in the order in which the parameters were given.
  void write_gradients(const double* totals, float* to) const {
    for (const Layer& layer : layers) {
      const int columns = layer.columns();
      const auto at = [&](int m, int k) { return totals[Panel::at(m, k, columns)]; };
      for (int m = 0; m < layer.width; ++m)
        for (int k = 0; k < layer.inputs; ++k) *to++ = static_cast<float>(at(m, k));
      for (int m = 0; m < layer.width; ++m) *to++ = static_cast<float>(at(m, columns - 1));
      totals += static_cast<int64_t>(padded(layer.width)) * columns;
    }
    for (int k = 0; k < last_inputs; ++k) *to++ = static_cast<float>(totals[k]);
    *to = 0.0f;  // a number added to all scores changes no coupling
  }
};

}  // namespace capsroute
