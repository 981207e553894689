// The keys of [precision] that say how fp8 scales.
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"

namespace colossal::nn {

struct Fp8Recipe;

/// Part of the section of number formats: fields() adds fp8_scaling, fp8_history and fp8_margin to the one it is called
/// in. They count in fp8 alone.
struct Fp8Config {
  std::string scaling = "current";
  int64_t history = 16;
  double margin = 0;
  void fields(Fields& f);
};

/// As the products of fp8 take it (nn/fp8_product.h).
/// Errors ("precision"): a scaling other than "current" and "delayed".
Fp8Recipe fp8_recipe(const Fp8Config& config);

}  // namespace colossal::nn
