// Opens the data of a run and resolves the model that fits it. The objective opens the samples (run/objective.h).
//
//   run::RunData data = run::open_data(config, colossal::built_in(), sources, replica);
//   const auto engine = train::initialize(world, config, data.shape, {}, data.objective.objective);
//   engine->train_step(data.training->next());
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "colossal/data/batches.h"
#include "colossal/models/config.h"
#include "colossal/run/config.h"
#include "colossal/run/objective.h"
#include "colossal/run/program.h"
#include "colossal/text/tokenizer.h"

namespace colossal::run {

/// The model of a run before its data are opened.
struct ResolvedModel {
  models::ModelShape shape;
  std::shared_ptr<text::Tokenizer> tokenizer;  ///< Objective::tokenizer(); null = none
  /// Objective for a model of this shape. Its `tables`, which the caller saves with the run, also contain the adapter's
  ChosenObjective objective;
  nn::Adapter adapter{};                   ///< changes that the run makes to the model
  std::optional<LowRankKeys> low_rank{};   ///< ChosenAdapter::low_rank
  std::vector<ResolvedFurther> further{};  ///< the models that the objective names; empty from resolve_model()
};

/// Resolves the model, objective and adapter of the config. The vocabulary of text covers the ids of tokenizer and
/// objective (Objective::ids), unless the config sets one.
/// Errors: the errors of resolve_shape(), choose_objective(), choose_adapter() and the tokenizer.
ResolvedModel resolve_model(const Config& config, const Program& program);
/// Resolves a run that trains: the adapter also has the treatment of [training] parameters, and the further models are
/// resolved. Errors: also those of with_trained_parameters() and resolve_further().
ResolvedModel resolve_run(const Config& config, const Program& program);

/// Checks that the model holds the ids of the tokenizer, and the tokens of a sample. A model that reads no text passes.
/// Errors ("model", "data"): it does not.
void check_text(const Config& config, const ResolvedModel& model);

/// Calls ObjectiveRow::prepare of the run's objective, if there is one. Collective among all ranks of `world`. Errors:
/// those of choose_row() and of the function.
void prepare_data(const Config& config, const Program& program, comm::World& world, const Preparation& how);

/// The opened data of one replica, and the model that fits them.
struct RunData : ResolvedModel {
  std::unique_ptr<data::Batches> training, held_out;  ///< held_out: null = the run does not evaluate
  /// Number of tokens of a sample in the model: its sequence; for an image, patches and class tokens
  int64_t sample_tokens = 0;
  /// config.model plus model.class_names, if the classes of texts have names in the data and not in the model. The
  /// caller saves it with the run
  models::ModelConfig model{};
  bool is_builtin = false;         ///< true: the texts are those of `builtin`
  std::vector<int64_t> end_ids{};  ///< OpenedData::end_ids
  std::string chat_template{};     ///< OpenedData::chat_template
  std::function<std::vector<int64_t>(const std::string& prompt)> encode_prompt{};  ///< OpenedData::encode_prompt
  std::vector<std::string> facts{};                                                ///< OpenedData::facts
};

/// Opens the data of replica `replica` (Config::replica_rows), in batches that are pinned if the run computes on an
/// accelerator.
/// `builtin`: path of the text that data.path = "builtin" stands for, a folder or a file of data::write_text_archive().
/// `device`: the device that the batches are for; none = the device of [run].
/// Errors: the errors of check_training() and resolve_run(); data that are missing, damaged, too
///         short, or not what the model reads.
RunData open_data(const Config& config, const Program& program, const std::string& builtin, int replica,
                  std::optional<at::Device> device = {});

}  // namespace colossal::run
