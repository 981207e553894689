// Adds the sample pictures of runs to the objective diffusion, the encoding of what they learn, and the discriminator
// of the objective reconstruction, because `run` does none of it.
//
//   const run::Program program = diffusion::with_diffusion(run::built_in());       // cli/whole_program.h
#pragma once
#include "colossal/run/program.h"

namespace colossal::diffusion {

/// Returns the program whose runs with [diffusion] draw training.sample_prompt every training.sample_every steps, and
/// encode pictures and captions before the first step, or with data.latents = "none" in each (encoding_rule.h), and
/// whose runs with reconstruction.gan train a discriminator (adversarial_rule.h). A row that makes samples, or the
/// table of another program, stays as it is.
run::Program with_diffusion(run::Program program);

}  // namespace colossal::diffusion
