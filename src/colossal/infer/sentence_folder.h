// What a folder of sentence-transformers says of how texts become vectors.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "colossal/infer/embed.h"

namespace colossal::infer {

struct SentenceFolder {
  std::string model;               ///< the Hugging Face folder in it
  std::optional<Pooling> pooling;  ///< none: the folder says nothing
  bool normalize = false;
  std::optional<int64_t> tokens{};               ///< that a text has at most; none: as many as the model has positions
  std::map<std::string, std::string> prompts{};  ///< by their names: what is put in front of a text
  std::string prompt_name{};                     ///< of the one that texts get where nobody names another; empty: none
};

/// Reads modules.json, and what it names: of a folder without it, its own name and nothing else.
/// Errors ("embed"): files that are not what sentence-transformers writes; modules that are computed otherwise (Dense),
///                   in another order than model, pooling, normalization, or outside the folder; poolings that are not
///                   one of Pooling's; a model that reads lower case of texts by itself (do_lower_case); prompts that
///                   the pooling leaves out (include_prompt = false). Each names its file.
SentenceFolder read_sentence_folder(const std::string& folder);

}  // namespace colossal::infer
