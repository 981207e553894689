// Factors that the Adam kernel takes, computed from an AdamStep. All update rules based on Adam use it.
#pragma once
#include <cmath>

#include "colossal/ops/kernels.h"
#include "colossal/ops/updates/update.h"

namespace colossal::ops {

/// Bias corrections of both moments: 1 - beta^step.
struct AdamCorrections {
  double first, second;
  explicit AdamCorrections(const AdamStep& step)
      : first(1 - std::pow(step.beta1, static_cast<double>(step.step))),
        second(1 - std::pow(step.beta2, static_cast<double>(step.step))) {}
};

template <class W>
AdamFactors<W> adam_factors(const AdamStep& step) {
  const AdamCorrections correction(step);
  return {static_cast<W>(step.penalty),   static_cast<W>(1 - step.learning_rate * step.weight_decay),
          static_cast<W>(1 - step.beta1), static_cast<W>(step.beta2),
          static_cast<W>(1 - step.beta2), static_cast<W>(1 / std::sqrt(correction.second)),
          static_cast<W>(step.epsilon),   static_cast<W>(step.learning_rate / correction.first)};
}

}  // namespace colossal::ops
