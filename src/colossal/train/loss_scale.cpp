#include "colossal/train/loss_scale.h"

#include <algorithm>
#include <cmath>

#include "colossal/base/json.h"

namespace colossal::train {
namespace {

constexpr double kMaxScale = 1 << 24;  // gradients of ordinary losses overflow at much smaller scales

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
  nlohmann::json state{{"good", good_}, {"skipped", skipped_}};
  if (active_) state["value"] = value_;
  if (weight_unit_ != 1) state["weight_unit"] = weight_unit_;
  return state;
}

void LossScale::restore(const nlohmann::json& state) {
  if (active_ && state.contains("value")) value_ = state["value"];  // checkpoints of other precisions have no value
  if (active_) weight_unit_ = state.value("weight_unit", 1.0);
  good_ = state.at("good");
  skipped_ = state.at("skipped");
}

}  // namespace colossal::train
