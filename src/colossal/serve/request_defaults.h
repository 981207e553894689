// Values of the options that a request leaves out.
//
//   const auto defaults = serve::request_defaults(command_line, given, serve::read_folder_options(folder));
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/infer/generation_options.h"

namespace colossal::serve {

/// GenerationOptions::max_tokens of an answer that takes all the room there is. fit_to_room() replaces it.
inline constexpr int64_t kAsManyAsFit = INT64_MAX;

/// Options that a model's generation_config.json sets; none = the file does not have the key.
struct FolderOptions {
  std::optional<double> temperature{}, top_p{}, min_p{}, repetition_penalty{};
  std::optional<int64_t> top_k{}, max_new_tokens{};
};

/// Reads generation_config.json in the folder `model`. Returns no options if there is no such file. In contrast to
/// infer::read_generation_defaults(), do_sample has no effect: a client that asks for no temperature expects OpenAI's.
/// Errors ("generation_config"): a file that is not a JSON object; a value of a wrong type or out of range. The message
///                               names the path.
FolderOptions read_folder_options(const std::string& model);

struct RequestDefaults {
  /// max_tokens, logprobs and prompt_logprobs have no effect.
  infer::GenerationOptions options{};
  std::optional<int64_t> max_tokens{};  ///< none = 16 for completions, as many as fit for chats
  bool has_seed = false;                ///< false = a request without a seed gets a random one
  std::string system{};                 ///< system message of chats that have none; "" = none
  /// Variables of the chat template; those of a request (chat_template_kwargs) have precedence. A JSON object.
  nlohmann::ordered_json variables = nlohmann::ordered_json::object();
};

/// Merges the options of the command line, of which the user gave those in `given` (names in JSON), with those of the
/// model's folder. An option of neither has OpenAI's default: temperature 1, no filters, no penalties.
RequestDefaults request_defaults(const infer::GenerationOptions& command_line, const std::vector<std::string>& given,
                                 const FolderOptions& folder = {});

}  // namespace colossal::serve
