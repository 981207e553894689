#include "colossal/run/base_codes.h"

#include <filesystem>
#include <memory>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/run/frozen_base.h"
#include "colossal/run/resolve_shape.h"
#include "colossal/run/stored_config.h"

namespace colossal::run {

bool keeps_codes(const Config& config) {
  const std::string& from = config.model.from;
  std::error_code ignored;
  const bool makes_others = config.tables.text("adapter.base").value_or("model") != "model";
  return !from.empty() && !makes_others && std::filesystem::exists(from, ignored) && !is_run(from) &&
         !has_numbers(from);
}

void check_codes(const Config& config) {
  require(config.precision.mode != "fp8", "adapter",
          "precision.mode must not be fp8 with a quantized model.from, whose decoded weights it would quantize again: "
          "got \"fp8\"; set another one, or write the weights as numbers with `colossal export --from ",
          config.model.from, " --to FOLDER`");
}

nn::Adapter with_base_codes(const nn::Adapter& adapter, const std::string& from, const models::ModelShape& shape) {
  const auto base = std::make_shared<const FrozenBase>(from, shape, adapter);
  nn::Adapter coded = adapter;
  coded.product = [base, around = adapter.product](std::shared_ptr<const nn::Product> product,
                                                   const nn::Parameter& weight, nn::Parameters& parameters) {
    product = base->wrap(std::move(product), weight, parameters);
    return around ? around(std::move(product), weight, parameters) : product;
  };
  return coded;
}

}  // namespace colossal::run
