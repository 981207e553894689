// Options shared by all commands that load a model for inference: its location, its layout over ranks, its precision,
// and limits on its memory.
//
//   ModelOptions options;
//   add_model_options(app, options);
//   parse(app, arguments);
//   check_model_options(app, options);                                  // before any rank starts
//   return with_model(options, "chat", arguments, program, [&](const LoadedModel& loaded) { ...; return 0; });
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "colossal/cli/arguments.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/infer/engine.h"
#include "colossal/parallel/sequence/config.h"
#include "colossal/run/saved_model.h"
#include "colossal/serve/model_options.h"

namespace colossal::diffusion {
struct OtherParts;
}

namespace colossal::cli {

struct ModelOptions : serve::ModelOptions {
  int64_t timeout = 300;  ///< seconds that ranks wait for each other
  distributed::ParallelConfig layout;
};

/// Adds the options to a command; --from is required. `sequence_modes` are the values of --parallel.sequence.mode.
void add_model_options(CLI::App& app, ModelOptions& options,
                       const std::vector<std::string>& sequence_modes = parallel::sequence_mode_names());
/// Adds --model, for a command that reads a run folder.
void add_model_name(CLI::App& app, std::string& model);
/// Adds --no-ema, for a command that reads a run folder.
void add_no_ema(CLI::App& app, bool& no_ema);
/// Adds --adapter and --base.
void add_adapter_options(CLI::App& app, std::vector<std::string>& adapters, std::string& base);
/// Adds the parts that a pipeline gets, for commands that draw.
void add_part_options(CLI::App& app, diffusion::OtherParts& other);
/// Adds --parallel.expert and the other keys of that table.
void add_expert_options(CLI::App& app, distributed::ParallelConfig& layout);
/// Adds --kv-cache, --kv-cache-dtype, --step-tokens, --draft-tokens and --draft, for commands that run many sequences
/// at once.
void add_engine_options(CLI::App& app, ModelOptions& model, infer::EngineOptions& engine);
/// Adds an option that takes bytes, e.g. 2GiB.
void add_size(CLI::App& app, const std::string& key, int64_t& bytes, const std::string& help);

/// Checks the options. Errors: invalid layouts; ("quantize") quantized weights together with memory tiers. UsageError:
/// an option of `app` that has no effect together with the others.
void check_model_options(const CLI::App& app, const ModelOptions& options);
/// Calls check_model_options() for commands that read or write text. Errors (of `command`): the tokenizer `none`.
void check_text_model_options(const CLI::App& app, const ModelOptions& options, const char* command);

/// Checks that a command that reads `from`, the value of `flag`, does not write to it. Errors (component `command`):
/// both name the same file or folder.
void require_another_path(const char* command, const std::string& from, const std::string& to,
                          const char* flag = "--from");

/// The loaded model of a rank.
struct LoadedModel {
  comm::World& world;
  comm::Mesh& mesh;
  const run::SavedModel& saved;
  const run::SavedModel* draft = nullptr;  ///< set with ModelOptions::draft
  /// Returns true on the one rank that talks to the user.
  bool speaks() const { return world.rank() == 0; }
  /// Returns `options` completed for the loaded model: its adapters and the draft model.
  infer::EngineOptions engine(infer::EngineOptions options) const;
};

/// Prints SavedModel::notices to stderr, a line each. Commands call it on rank 0 after they have loaded a model.
void print_notices(const run::SavedModel& saved);

/// Joins the ranks of `replicas` times the layout, one of which this process is. Rank 0 warns of unused GPUs. Errors
/// ("parallel"): another number of ranks.
std::unique_ptr<comm::World> join_layout(const ModelOptions& options, int64_t copies = 1,
                                         const char* name_of_copies = "replicas");

/// Loads the model and runs work() on every rank of the layout. Starts the ranks if no launcher did
/// (cli/local_world.h). Returns the exit status. `program` has the models that a folder may name; null = the built-in
/// ones. Errors: errors of run::load_model(); a number of ranks that differs from the layout; ("draft") a draft model
/// that has other tokens or does not continue text.
int with_model(const ModelOptions& options, const std::string& command, const Arguments& arguments,
               const run::Program* program, const std::function<int(const LoadedModel&)>& work);

}  // namespace colossal::cli
