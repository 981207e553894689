// What `colossal draw --plan` prints: the needs of a drawing on a cluster, without drawing.
#pragma once
#include <string>

#include "colossal/cli/model_options.h"
#include "colossal/diffusion/draw_options.h"
#include "colossal/diffusion/saved_pipeline.h"

namespace colossal::cli {

/// Prints the memory, the time and the traffic of drawing, from shapes alone (predict/drawing_plan.h). `model.from` may
/// also be a preset of a model that draws pictures. `guidance_ranks`: 2 = both passes of guidance at once.
/// `vae`: as for run::set_autoencoder(). `cluster`: as for `colossal plan`; empty = this machine. Returns the exit
/// status, which is 0 for a drawing that does not fit, too.
/// Errors: ("draw") a preset that draws no pictures; those of diffusion::find_pipeline(), run::check_guidance_ranks(),
/// run::choose_cluster() and predict::plan_drawing().
int draw_plan(const ModelOptions& model, int64_t guidance_ranks, const diffusion::DrawOptions& options,
              const diffusion::OtherParts& other, const std::string& cluster, bool as_json,
              const run::Program* program);

}  // namespace colossal::cli
