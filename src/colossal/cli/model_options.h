// The options of commands that load a model to ask it something, one for all of them: where it lies, how it is spread
// over ranks, in what it computes and how much memory it may use.
//
//   ModelOptions options;
//   add_model_options(app, options);
//   parse(app, arguments);
//   check_model_options(app, options);                                  // before any rank starts
//   return with_model(options, "chat", arguments, program, [&](const LoadedModel& loaded) { ...; return 0; });
#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "colossal/cli/arguments.h"
#include "colossal/comm/mesh.h"
#include "colossal/comm/world.h"
#include "colossal/infer/engine.h"
#include "colossal/models/registry.h"
#include "colossal/run/config.h"
#include "colossal/run/saved_model.h"

namespace colossal::cli {

struct ModelOptions {
  std::string from;       ///< run folder, Hugging Face folder or GGUF file
  std::string tokenizer;  ///< as data.tokenizer; empty: the model's own
  std::string device = "auto";
  int64_t timeout = 300;  ///< seconds
  distributed::ParallelConfig layout;
  run::PrecisionConfig precision{.mode = ""};  ///< empty: the model's own
  std::string quantize;                        ///< int8, int4, fp8; empty: weights are not rounded
  int64_t group = 128;
  run::MemoryConfig memory;
  std::string draft;  ///< as `from`, of a smaller model that guesses; empty: none
};

/// Adds them to a command; --from is required.
void add_model_options(CLI::App& app, ModelOptions& options);
/// --cache, --cache-type, --step-tokens, --guess and --draft of commands that run many texts at once.
void add_engine_options(CLI::App& app, ModelOptions& model, infer::EngineOptions& engine);
/// Adds an option of bytes, as 2GiB.
void add_size(CLI::App& app, const std::string& key, int64_t& bytes, const std::string& help);

/// Errors: layouts that cannot be; ("quantize") weights in codes together with tiers. UsageError: an option of `app`
/// that the others leave without effect.
void check_model_options(const CLI::App& app, const ModelOptions& options);
/// check_model_options() for commands that read or write text. Errors (of `command`): the tokenizer `none`.
void check_text_model_options(const CLI::App& app, const ModelOptions& options, const char* command);

/// The model of a rank.
struct LoadedModel {
  comm::World& world;
  comm::Mesh& mesh;
  const run::SavedModel& saved;
  const run::SavedModel* draft = nullptr;  ///< with ModelOptions::draft
  /// Returns true on the one rank that talks to the user.
  bool speaks() const { return world.rank() == 0; }
  /// `options` with what was loaded: weights that come and go, the draft model.
  infer::EngineOptions engine(infer::EngineOptions options) const;
};

/// Runs work() on every rank of the layout with the model loaded, the ranks started if no launcher did
/// (cli/local_world.h). Returns the exit status. `program`: null for the built-in one.
/// Errors: those of run::load_model(); ranks that are not the layout's; ("draft") a draft model of other tokens.
int with_model(const ModelOptions& options, const std::string& command, const Arguments& arguments,
               const run::Program* program, const std::function<int(const LoadedModel&)>& work);

}  // namespace colossal::cli
