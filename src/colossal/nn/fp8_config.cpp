#include "colossal/nn/fp8_config.h"

#include "colossal/base/error.h"
#include "colossal/nn/fp8_product.h"

namespace colossal::nn {

void Fp8Config::fields(Fields& f) {
  f.choice(
      "fp8_scaling", scaling, {"current", "delayed"},
      "source of the scale of an fp8 operand: current = its own largest magnitude, delayed = that of earlier steps");
  f.integer("fp8_history", history, "steps", "number of earlier steps that delayed scaling considers", 1, 1024);
  f.number("fp8_margin", margin, "bits", "headroom of fp8 scales above the largest magnitude, in powers of two", 0, 8);
}

Fp8Recipe fp8_recipe(const Fp8Config& config) {
  const bool is_delayed = config.scaling == "delayed";
  require(is_delayed || config.scaling == "current", "precision", "fp8_scaling must be current or delayed: got ",
          config.scaling);
  return {.scaling = is_delayed ? Fp8Recipe::Scaling::Delayed : Fp8Recipe::Scaling::Current,
          .history = config.history,
          .margin = config.margin};
}

}  // namespace colossal::nn
