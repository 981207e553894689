// Dynamic loss scaling (Micikevicius et al. 2018, arXiv:1710.03740).
#pragma once
#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "colossal/run/config.h"

namespace colossal::train {

/// The factor by which losses are multiplied before backward, so that gradients do not underflow in fp16. It is halved
/// after a step whose gradients overflowed; that step is skipped. It is doubled after [precision] loss_scale_growth
/// steps without overflow, up to 2^24, or up to its start value if that is larger. All ranks have the same norm, so
/// they have the same scale.
class LossScale {
 public:
  /// The scale stays 1, unless mode is fp16 and loss_scale is not 0.
  explicit LossScale(const run::PrecisionConfig& config);
  double value() const { return value_; }
  /// Returns true if a step with this gradient norm may update, and adjusts the scale. Returns false and halves the
  /// scale if the norm is not finite. If the scale is 1 already, it returns true, because the scale is not the cause.
  /// The caller must then report the norm.
  bool accepts(double norm);
  /// Returns the unit in which the weights of losses are multiplied with them, so that large weights, for example
  /// numbers of tokens, do not overflow in fp16. It is a power of two near the last mean weight, and 1 at first and in
  /// other modes.
  double weight_unit() const { return weight_unit_; }
  /// Sets weight_unit() after a step. `mean`: mean weight of its losses, above 0.
  void set_mean_weight(double mean);
  /// Returns the number of skipped steps.
  int64_t skipped() const { return skipped_; }

  nlohmann::json state() const;
  void restore(const nlohmann::json& state);

 private:
  bool active_;
  int64_t growth_;
  double value_;
  double weight_unit_ = 1;
  int64_t good_ = 0, skipped_ = 0;  // steps since the last change; skipped steps
};

}  // namespace colossal::train
