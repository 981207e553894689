// What a run reads, and the model that fits it. Its objective opens the data (run/objective.h).
//
//   run::RunData data = run::open_data(config, colossal::built_in(), sources, replica);
//   const auto engine = train::initialize(world, config, data.shape, {}, data.objective.objective);
//   engine->train_step(data.training->next());
#pragma once
#include <cstdint>
#include <memory>
#include <string>

#include "colossal/data/batches.h"
#include "colossal/models/config.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"
#include "colossal/run/program.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {

struct ResolvedModel {
  models::ModelShape shape;
  std::unique_ptr<text::Tokenizer> tokenizer;  ///< null for a model that reads no text
  ChosenObjective objective;                   ///< for a model of this shape; its `tables` have the adapter's, too
  nn::Adapter adapter{};                       ///< what the run changes of the model
};

/// The model, objective and adapter of the config; the vocabulary of text is that of tokenizer and objective
/// (Objective::ids), unless the config says otherwise.
/// Errors: those of models::Registry::resolve(), of choose_objective() and choose_adapter(), and of the tokenizer.
ResolvedModel resolve_model(const Config& config, const Program& program);

struct RunData {
  models::ModelShape shape;
  std::shared_ptr<text::Tokenizer> tokenizer;         ///< null for a model that reads no text
  std::unique_ptr<data::Batches> training, held_out;  ///< no held_out: the run does not evaluate
  /// What a sample is to the model: its sequence; patches and class token
  int64_t sample_tokens = 0;
  /// config.model with what the data says of it: model.class_names, where the classes of texts have names and the model
  /// none. It is to be kept with the run
  models::ModelConfig model{};
  ChosenObjective objective{};  ///< its `tables` are to be kept with the run
  nn::Adapter adapter{};
};

/// Opens the data of replica `replica`, in batches that are pinned where the run computes on an accelerator. `builtin`:
/// what data.path = "builtin" stands for. `device`: that batches are for; none: that of [run] device.
/// Errors: resolve_model()'s; data that is missing, damaged, too short, or not what the model reads.
RunData open_data(const Config& config, const Program& program, const std::string& builtin, int replica,
                  std::optional<at::Device> device = {});

}  // namespace colossal::run
