// The steps of a run that encodes its pictures, clips and captions itself (data.latents = "none").
//
//   row.step_rule = diffusion::make_encoding_rule;      // diffusion/rows.cpp
#pragma once
#include <memory>

#include "colossal/run/config.h"
#include "colossal/run/own_tables.h"
#include "colossal/train/engine.h"
#include "colossal/train/step_rule.h"

namespace colossal::diffusion {

/// Returns the rule that encodes each batch with the frozen models vae, text_encoder and so on of the run
/// (run::diffusion_encoders()), row by row, as a latent cache is filled: in fp32 and fp64 the losses are those of a run
/// with a cache. In bf16 and fp16 the encoders compute in that dtype, and those of a cache in fp32. For a run that
/// encodes nothing it returns train::OneUpdate.
std::unique_ptr<train::StepRule> make_encoding_rule(train::Engine& engine, const run::Config& config,
                                                    const run::OwnTables& tables);

}  // namespace colossal::diffusion
