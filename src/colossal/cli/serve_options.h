// The command line of `colossal serve`, checked before any rank starts.
//
//   const ServeOptions options = read_serve_options({"--from", "qwen", "--port", "0"}, run::built_in());
//   options.task.continues();   // true: the server has completions and chats
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/cli/model_options.h"
#include "colossal/diffusion/saved_pipeline.h"
#include "colossal/http/keys.h"
#include "colossal/http/limits.h"
#include "colossal/infer/embeddings/embed.h"
#include "colossal/models/task.h"
#include "colossal/run/adapter_choice.h"
#include "colossal/serve/request_defaults.h"
#include "colossal/text/chat_template.h"

namespace colossal::cli {

/// An adapter of a server, which requests choose by its name.
struct SelectableAdapter {
  run::AdapterChoice choice{};
  std::optional<text::ChatTemplate> chat_template{};  ///< the template in its folder; none = the server's
};

struct ServeOptions {
  ModelOptions model;  ///< `from` is the folder of the model itself, also for a folder of sentence-transformers
  infer::EngineOptions engine;
  models::Task task{};
  bool draws = false;           ///< the model draws pictures, and has no task of texts
  diffusion::OtherParts other;  ///< parts of a model that draws
  serve::RequestDefaults defaults{};
  std::optional<text::ChatTemplate> chat_template{};  ///< none = the server has no chats
  infer::EmbedOptions embedding{};
  int64_t embedding_tokens = 0;  ///< maximum number of tokens of a text to embed; 0 = the model's positions
  std::string embedding_prompt;  ///< text before each text to embed; "" = none

  std::string name;                         ///< name of the model
  bool demands_name = false;                ///< requests for another model are refused
  std::vector<SelectableAdapter> adapters;  ///< adapters that requests choose by their names
  std::string host = "127.0.0.1";
  int64_t port = 8000;
  http::Keys keys{};  ///< empty = no key is needed
  std::vector<std::string> allowed_hosts;
  http::ServerLimits limits{};
  int64_t replicas = 1;
  double drain = 30;  ///< seconds that running requests get after a stop signal

  /// Returns the number of ranks of all replicas.
  int64_t ranks() const { return replicas * model.layout.ranks(); }
  /// Returns "1 rank", or "2 replicas of 4 ranks".
  std::string printed_ranks() const;
};

/// Parses the arguments of the command, and reads the files that they name. It reads no weights.
/// Errors: UsageError; HelpWanted; ("serve") a host that other machines reach, without keys; a model that neither
///         continues nor embeds text nor draws; adapters to choose from, for a model that does not continue text;
///         errors of http::read_keys(), http::ServerLimits::check(), infer::read_sentence_folder(), run::task_of(),
///         check_text_model_options(), serve::ModelOptions::chat_template() and serve::read_folder_options().
ServeOptions read_serve_options(const Arguments& arguments, const run::Program& program);

}  // namespace colossal::cli
