// `colossal serve` of a model that draws pictures.
//
//   if (options.draws) return serve_pictures_as_rank(options, program);
#pragma once
#include "colossal/cli/serve_options.h"
#include "colossal/run/program.h"

namespace colossal::cli {

/// Loads the pipeline of options.model.from on this rank, and draws for requests until a stop signal. Returns the exit
/// status. `program` has the models that a folder may name; null = the built-in ones.
/// Errors: those of diffusion::find_pipeline(), serve::load_with_draft(), diffusion::PipelineParts and
/// http::Server.
int serve_pictures_as_rank(const ServeOptions& options, const run::Program* program);

}  // namespace colossal::cli
