// Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "colossal/run/config.h"

namespace colossal::train {

/// What losses are multiplied by before they go backward, so that gradients do not vanish in fp16. Halved after a step
/// whose gradients overflowed, which is skipped; doubled after [precision] loss_scale_growth steps without one. The
/// norm is the same on all ranks, so the scale is, too.
class LossScale {
 public:
  /// 1 for good, unless mode is fp16 and loss_scale is not 0.
  explicit LossScale(const run::PrecisionConfig& config);
  double value() const { return value_; }
  /// Whether a step with this gradient norm may be taken. A norm that is not finite says no, and changes the scale,
  /// until that is 1: then the fault is not the scale's.
  bool accepts(double norm);
  int64_t skipped() const { return skipped_; }

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  bool active_;
  int64_t growth_;
  double value_;
  int64_t good_ = 0, skipped_ = 0;  // steps since the last change; steps that were not taken
};

}  // namespace colossal::train
