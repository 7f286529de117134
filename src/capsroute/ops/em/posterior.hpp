// Variational routing: what a prior makes of an M-step's moments, and the way back.
#pragma once

#include "plan.hpp"

namespace capsroute {
namespace {

// The digamma function, or a sum of them, and its derivative.
struct Digamma {
  double value, slope;
};

// For x > 0, within 1e-11: from x >= 8 the asymptotic series, up to there by psi(x) = psi(x + 1) - 1 / x.
inline Digamma digamma(double x) {
  double value = 0.0, slope = 0.0;
  for (; x < 8.0; x += 1.0) {
    value -= 1.0 / x;
    slope += 1.0 / (x * x);
  }
  const double r = 1.0 / x, s = r * r;
  value += std::log(x) - 0.5 * r - s * (1.0 / 12 - s * (1.0 / 120 - s * (1.0 / 252 - s / 240)));
  slope += r + 0.5 * s + r * s * (1.0 / 6 - s * (1.0 / 30 - s * (1.0 / 42 - s / 30)));
  return {value, slope};
}

// Sum over h < count of psi((x - h) / 2), as a function of x: two chains of steps of one, each from one logarithm.
inline Digamma digammas(int64_t count, double x) {
  Digamma all = {0.0, 0.0};
  for (int64_t first = 0; first < std::min<int64_t>(count, 2); ++first) {
    double at = 0.5 * (x - first);
    Digamma psi = digamma(at);
    for (int64_t h = first; h < count; h += 2) {
      if (h > first) {
        at -= 1.0;
        const double r = 1.0 / at;
        psi.value -= r;
        psi.slope += r * r;
      }
      all.value += psi.value;
      all.slope += 0.5 * psi.slope;
    }
  }
  return all;
}

// Centre and squared width of the Gaussian that scores votes; needs nothing of other capsules.
inline void shrink(const Plan& plan, const Moments& m) {
  const float kappa = plan.in.prior->kappa, scatter = plan.in.prior->scatter, mass = *m.mass;
  const float pull = mass / (kappa + mass), inverse = 1.0f / (plan.in.prior->degrees + mass);
  for (int64_t d = 0; d < plan.g.out(); ++d) {
    m.centre[d] = pull * m.mean[d];
    m.width[d] = inverse * (scatter + mass * m.variance[d] + kappa * pull * m.mean[d] * m.mean[d]);
  }
}

// What is believed of one output capsule: expectations, and how they change with its mass.
struct Posterior {
  double kappa, degrees;
  Digamma log_share;      // E ln pi; the slope is that of its own share alone
  Digamma log_precision;  // E ln |Lambda|; the slope is that at fixed scatter
  double entropy;

  Posterior(const Plan& plan, const Moments& m, const Digamma& everyone)
      : kappa(plan.in.prior->kappa + *m.mass),
        degrees(plan.in.prior->degrees + *m.mass),
        log_share(digamma(plan.in.prior->alpha + *m.mass)),
        log_precision(digammas(plan.g.out(), degrees)) {
    const double size = static_cast<double>(plan.g.out());
    log_share.value -= everyone.value;
    log_precision.value += size * std::log(2.0) - 2.0 * *m.spread;
    entropy = 0.5 * (size * (std::log(2.0 * M_PI) + 1.0) - log_precision.value);
  }

  float logit(float beta) const { return static_cast<float>(beta - std::exp(log_share.value) * entropy); }
  double base(int64_t size) const { return log_share.value + 0.5 * (log_precision.value - size / kappa); }
};

// psi of all counts of a position together, which its shares are relative to.
inline Digamma everyone(const Plan& plan, int64_t image, int64_t position, int64_t t) {
  double counts = 0.0;
  for (int64_t j = 0; j < plan.g.outputs; ++j)
    counts += plan.in.prior->alpha + *plan.moments(plan.output(image, position, j), t).mass;
  return digamma(counts);
}

// From the gradients of centre and squared width (in `mean` and `variance`), of E ln pi, E ln |Lambda| and kappa to those of
// mean and variance and, returned, the mass, but for what goes through the other shares of the position.
inline float shrink_backward(const Plan& plan, const Posterior& belief, const Moments& m, double grad_share,
                             double grad_precision, double grad_kappa, float* mean, float* variance) {
  const double kappa = plan.in.prior->kappa, mass = *m.mass;
  const double pull = mass / belief.kappa, slope = kappa / (belief.kappa * belief.kappa);
  double grad_mass = grad_share * belief.log_share.slope + grad_precision * belief.log_precision.slope + grad_kappa;
  double grad_degrees = 0.0;
  for (int64_t d = 0; d < plan.g.out(); ++d) {
    const double scatter = m.width[d] * belief.degrees, at = m.mean[d], grad_centre = mean[d];
    const double grad_scatter = variance[d] / belief.degrees - grad_precision / scatter;
    grad_degrees -= variance[d] * m.width[d];
    grad_mass += grad_centre * at * slope + grad_scatter * (m.variance[d] + kappa * slope * at * at);
    mean[d] = static_cast<float>(pull * (grad_centre + 2.0 * kappa * grad_scatter * at));
    variance[d] = static_cast<float>(grad_scatter * mass);
  }
  return static_cast<float>(grad_mass + grad_degrees / belief.degrees);
}

}  // namespace
}  // namespace capsroute
