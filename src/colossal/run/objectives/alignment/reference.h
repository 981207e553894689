// The reference of preference training: a constant model, with whose log-probabilities those of the policy are
// compared.
//
//   const std::vector<FurtherModel> models = reference_models(config, tables, shape);     // none, or kReference
#pragma once
#include <string>
#include <vector>

#include "colossal/run/further_model.h"
#include "colossal/run/objective.h"

namespace colossal::run {

/// Name of the further model, and of its table.
inline constexpr char kReference[] = "reference";

/// Returns true if the method of [alignment] compares the policy with a reference: dpo, ipo, kto.
bool has_reference(const OwnTables& tables);

/// Returns the reference of a run, whether or not its log-probabilities are precomputed.
///   reference.from, name    that model, or that preset
///   else, new adapters      the main model with its adapters switched off. Modules that are trained whole
///                           (adapter.trained) are frozen originals, those of the base
///   else                    the weights with which the run starts: those of model.from, with the adapters of
///                           adapter.from, or those that are drawn (ModelUse::Original)
FurtherModel reference_of(const Config& config, const OwnTables& tables);

/// ObjectiveRow::models of the objective alignment: reference_of() if the method has one and its log-probabilities are
/// not precomputed. Errors ("reference"): keys of [reference] without effect.
std::vector<FurtherModel> reference_models(const Config& config, const OwnTables& tables,
                                           const models::ModelShape& shape);

/// Returns true if the reference is the model with which the run starts, so that the first loss is known.
bool starts_at_reference(const Config& config, const OwnTables& tables);

/// Returns the folder of precomputed log-probabilities: reference.cache, or a folder of the run. That is
/// RunFolder::next_reference() until the run has begun, if there is one, and then RunFolder::reference().
std::string reference_cache(const Config& config, const OwnTables& tables);

}  // namespace colossal::run
