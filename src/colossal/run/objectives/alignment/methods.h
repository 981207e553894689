// The methods of alignment, each a function that makes the objective of a run: a row of methods() in alignment.cpp.
#pragma once
#include <memory>

#include "colossal/run/objective.h"

namespace colossal::run {

/// Makes the objective of supervised fine-tuning: the mean negative log-likelihood of all counted tokens of the global
/// batch. Labels [B, S]: the next token where it belongs to an answer.
/// Errors ("objective"): a model that does not continue text.
std::unique_ptr<Objective> make_fine_tuning(const Config& config, const OwnTables& tables,
                                            const models::ModelShape& shape);

}  // namespace colossal::run
