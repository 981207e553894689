// Reads from a folder of sentence-transformers how texts become vectors.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "colossal/infer/embeddings/embed.h"

namespace colossal::infer {

struct SentenceFolder {
  std::string model;               ///< path of the Hugging Face model folder inside it
  std::optional<Pooling> pooling;  ///< none = the folder does not specify one
  bool normalize = false;
  std::optional<int64_t> tokens{};               ///< maximum tokens per text; none = the model's positions
  std::map<std::string, std::string> prompts{};  ///< texts to put before each input, by name
  std::string prompt_name{};                     ///< name of the default prompt; "" = none
};

/// Reads modules.json and the files of its modules. For a folder without modules.json, sets only `model`, to the folder
/// itself.
/// Errors ("embed"): files that are not in the format of sentence-transformers; unsupported modules (Dense), an order
///                   other than model, pooling, normalization, or a module outside the folder; none or several
///                   poolings, or one other than cls, mean, max and last; a model that converts texts to lower case
///                   itself (do_lower_case); pooling that excludes the prompt (include_prompt = false). Each message
///                   names the file.
SentenceFolder read_sentence_folder(const std::string& folder);

}  // namespace colossal::infer
