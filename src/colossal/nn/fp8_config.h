// The keys of [precision] that select how fp8 operands are scaled.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::nn {

struct Fp8Recipe;

/// A part of a config section: fields() adds the keys fp8_scaling, fp8_history and fp8_margin to the section that calls
/// it. They have an effect only with fp8. See Fp8Recipe for their meaning and units.
struct Fp8Config {
  std::string scaling = "current";
  int64_t history = 16;
  double margin = 0;
  void fields(Fields& f);
};

/// Returns the recipe that the fp8 products take (nn/fp8_product.h).
/// Errors ("precision"): a scaling other than "current" and "delayed".
Fp8Recipe fp8_recipe(const Fp8Config& config);

}  // namespace colossal::nn
