// The objectives of the library, each a function that makes it: ObjectiveRow::make of its row in built_in.cpp.
#pragma once
#include <memory>
#include <vector>

#include "colossal/run/objective.h"
#include "colossal/run/objectives/data_keys.h"

namespace colossal::run {

/// Makes the objective of a language model. Labels [B, S]: the next token at each position.
std::unique_ptr<Objective> make_next_token(const Config& config, const OwnTables& tables,
                                           const models::ModelShape& shape);
/// Makes the objective of a masked language model. Labels [B, S]: the masked tokens, at their positions.
/// Errors ("data"): shares of masked tokens whose sum is above 1.
std::unique_ptr<Objective> make_masked_token(const Config& config, const OwnTables& tables,
                                             const models::ModelShape& shape);
/// Makes the objective for pairs of texts or, with data.noise_density, for spans of one text. Labels [B, T]: the target
/// tokens for the source of each row.
std::unique_ptr<Objective> make_target(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
/// Makes the objective of a classifier of texts or images. Labels [B, 1]: the class of each sample.
std::unique_ptr<Objective> make_class(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
/// Makes the objective of models that predict the noise of pictures (diffusion/diffusion_objective.h).
std::unique_ptr<Objective> make_diffusion(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape);
/// Names the frozen autoencoder and text encoder of a run with data.latents = "none"; none of another run. Each rank
/// has them whole, but for ZeRO and tiers. Errors: those of pipeline_of_run(); ("data") random weights of another seed
/// than the run's.
std::vector<FurtherModel> diffusion_encoders(const Config& config, const OwnTables& tables,
                                             const models::ModelShape& shape);
/// Makes the objective of models that encode and decode pictures or clips
/// (reconstruction/reconstruction_objective.h).
std::unique_ptr<Objective> make_reconstruction(const Config& config, const OwnTables& tables,
                                               const models::ModelShape& shape);
/// ObjectiveRow::complete of that objective (complete_clip_batches()).
void complete_reconstruction(Config& config, const OwnTables& tables, std::vector<std::string>& notices);
/// ObjectiveRow::models of that objective: with reconstruction.gan above 0 the discriminator.
std::vector<FurtherModel> reconstruction_models(const Config& config, const OwnTables& tables,
                                                const models::ModelShape& shape);
/// Makes the objective of models that fold proteins (folding/folding_objective.h).
std::unique_ptr<Objective> make_folding(const Config& config, const OwnTables& tables, const models::ModelShape& shape);
/// Makes the objective that alignment.method names, which fine-tunes a language model on chats.
std::unique_ptr<Objective> make_alignment(const Config& config, const OwnTables& tables,
                                          const models::ModelShape& shape);

}  // namespace colossal::run
