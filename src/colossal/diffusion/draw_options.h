// The options with which a picture is drawn. Commands take them as flags, lines of JSON and programs under the same
// names.
//
//   DrawOptions options{.drawn = "star", .steps = 50};
//   options.check();
#pragma once
#include <cstdint>
#include <string>

#include "colossal/base/fields.h"
#include "colossal/noise/sampler.h"
#include "colossal/run/objectives/diffusion/diffusion_objective.h"

namespace colossal::diffusion {

struct DrawOptions {
  std::string drawn;  ///< "class": name or number of a class
  int64_t count = 1, seed = 1, steps = 25;
  std::string sampler, spacing;  ///< empty = those of the run
  bool karras = false;
  double eta = 0, guidance = 0, rescale = 0;  ///< guidance: 0 = that of the run
  void fields(Fields& f);

  /// Errors ("draw"): numbers out of range. `where` begins the message, such as the line of a file; may be empty.
  void check(const std::string& where = "") const;
  /// Returns the plan of the sampler for the model of a run; ddpm uses the variance of a model that predicts one.
  /// Errors: those of plan_of().
  noise::SamplerPlan plan(const run::DiffusionObjective& objective) const;
};

}  // namespace colossal::diffusion
