#include "colossal/train/loss_scale.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "colossal/base/json_fields.h"

namespace colossal::train {
namespace {

constexpr double kMaxScale = 1 << 24;  // gradients of ordinary losses overflow at much smaller scales

/// The state in a checkpoint.
struct StoredScale {
  int64_t good = 0, skipped = 0;
  std::optional<double> value{};  ///< checkpoints of other precisions have none
  double weight_unit = 1;

  void fields(Fields& f) {
    f.member("good", good), f.member("skipped", skipped);
    f.optional(!value.has_value()).member("value", value);
    f.optional(weight_unit == 1).member("weight_unit", weight_unit);
  }
};

}  // namespace

LossScale::LossScale(const run::PrecisionConfig& config)
    : active_(config.mode == "fp16" && config.loss_scale > 0),
      growth_(config.loss_scale_growth),
      value_(active_ ? config.loss_scale : 1) {}

bool LossScale::accepts(double norm) {
  if (!active_) return true;
  if (!std::isfinite(norm)) {
    if (value_ <= 1) return true;
    value_ = std::max(value_ / 2, 1.0);
    good_ = 0;
    ++skipped_;
    return false;
  }
  if (++good_ < growth_) return true;
  value_ = std::min(value_ * 2, std::max(value_, kMaxScale));
  good_ = 0;
  return true;
}

void LossScale::set_mean_weight(double mean) {
  if (active_) weight_unit_ = std::ldexp(1, std::ilogb(mean));
}

nlohmann::json LossScale::state() const {
  StoredScale stored{.good = good_, .skipped = skipped_, .weight_unit = weight_unit_};
  if (active_) stored.value = value_;
  return to_json_object(stored);
}

void LossScale::restore(const nlohmann::json& state) {
  const auto stored = read_stored<StoredScale>(state, "checkpoint");
  if (active_) value_ = stored.value.value_or(value_), weight_unit_ = stored.weight_unit;
  good_ = stored.good, skipped_ = stored.skipped;
}

}  // namespace colossal::train
