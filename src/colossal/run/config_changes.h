// The changes between the saved config of a run and the config with which it is resumed, and what each one changes.
//
//   const auto changes = run::changes_since(progress, config, shape, program);
//   const std::string refused = run::listed(changes, run::KeyEffect::Model);   // "model.rope_theta = 10000.0 -> 5e5"
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "colossal/models/shape.h"
#include "colossal/run/config.h"
#include "colossal/run/program.h"

namespace colossal::run {

/// What another value of a key changes for a run that resumes.
enum class KeyEffect {
  None,      ///< only layout, memory, files or records; or the sizes of tensors, which a load compares itself
  Training,  ///< how the weights are trained from now on
  Model,     ///< what the weights compute
};

/// Returns the effect of a key, by its dotted name. An own key of an architecture is of kind Model, unless
/// HuggingFace::own_training lists it; so is a key of an adapter's table. Keys of other tables are of kind Training.
/// So are, for a mixture, the numbers of micro-batches, because its losses compare the tokens of a micro-batch.
KeyEffect effect_of(const std::string& key, const models::ModelShape& shape, const Program& program);

/// A key with two values.
struct ConfigChange {
  std::string text;  ///< "model.layers = 2 -> 3"
  KeyEffect effect = KeyEffect::None;
};
using ConfigChanges = std::vector<ConfigChange>;

/// Returns the changes of that effect, or all of them, joined by ", "; empty = none.
std::string listed(const ConfigChanges& changes, std::optional<KeyEffect> effect = {});

/// Returns the values of all keys of a model, with defaults, as the progress of a checkpoint holds them under "model".
nlohmann::json values_of(const models::ModelShape& shape);

/// Returns the changes outside [run] since a checkpoint whose `progress` has its config and, of a newer version, its
/// model: values_of(). Otherwise the model is resolved from the saved config; if its folder has moved, from that of
/// `now`. `shape`: the model of `now`. A renamed key is no change. Returns none if the saved config cannot be read.
ConfigChanges changes_since(const nlohmann::json& progress, const Config& now, const models::ModelShape& shape,
                            const Program& program);

/// Returns the changes for a user-defined module, which reads neither [model] nor [data] nor other tables.
ConfigChanges changes_since(const nlohmann::json& progress, const Config& now);

}  // namespace colossal::run
