// A small vocabulary of CLIP's tokenizer with its merges, in the files of a folder of Stable Diffusion.
//
//   clip::write_folder(folder, {{"pad_token", "!"}});
#pragma once
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "support/temporary_folder.h"

namespace colossal::text::clip {

using nlohmann::json;

/// Pairs of tokens that are joined, in order.
using Merges = std::vector<std::pair<std::string, std::string>>;

inline const Merges& merges() {
  static const Merges all{{"p", "h"},
                          {"o", "t"},
                          {"ph", "ot"},
                          {"phot", "o</w>"},
                          {"phot", "o"},
                          {"o", "f</w>"},
                          {"a", "n</w>"},
                          {"r", "i"},
                          {"d", "i"},
                          {"n", "g</w>"},
                          {"ri", "d"},
                          {"i", "ng</w>"},
                          {"c", "a"},
                          {"d", "o"},
                          {"rid", "ing</w>"},
                          {"ca", "t</w>"},
                          {"do", "g</w>"},
                          {"'", "t</w>"},
                          {"'", "s</w>"},
                          {"v", "e</w>"},
                          {"w", "e</w>"},
                          {"'", "ve</w>"},
                          {"\u00c3", "\u00a9</w>"}};
  return all;
}

/// Returns the first 512 tokens of each CLIP: the bytes in the order of their alphabet, alone and at the end of words.
inline json bytes() {
  std::vector<std::string> letters;
  for (int byte = 0; byte < 256; ++byte) letters.push_back(to_byte_alphabet(std::string(1, static_cast<char>(byte))));
  std::sort(letters.begin(), letters.end());
  json ids = json::object();
  for (const char* end : {"", "</w>"})
    for (const std::string& letter : letters) ids[letter + end] = ids.size();
  return ids;
}

/// Returns the bytes, the results of merges() from 512 on, and the begin and end tokens.
inline json vocabulary() {
  json ids = bytes();
  for (const auto& [left, right] : merges()) ids[left + right] = ids.size();
  for (const char* token : {"<|startoftext|>", "<|endoftext|>"}) ids[token] = ids.size();
  return ids;
}

/// Returns tokenizer_config.json of Stable Diffusion 1.5.
inline json config() {
  const auto token = [](const char* content) -> json {
    return {{"__type", "AddedToken"}, {"content", content}, {"lstrip", false},
            {"normalized", true},     {"rstrip", false},    {"single_word", false}};
  };
  return {{"add_prefix_space", false},
          {"bos_token", token("<|startoftext|>")},
          {"do_lower_case", true},
          {"eos_token", token("<|endoftext|>")},
          {"errors", "replace"},
          {"model_max_length", 77},
          {"pad_token", "<|endoftext|>"},
          {"tokenizer_class", "CLIPTokenizer"},
          {"unk_token", token("<|endoftext|>")}};
}

inline std::string lines(const Merges& merges) {
  std::string text = "#version: 0.2\n";
  for (const auto& [left, right] : merges) text += left + " " + right + "\n";
  return text;
}

/// Writes vocab.json, merges.txt and tokenizer_config.json, and special_tokens_map.json if `map` is not null.
inline void write_folder(const test::TemporaryFolder& folder, const json& map = nullptr,
                         const json& tokenizer_config = config()) {
  folder.write("vocab.json", vocabulary().dump());
  folder.write("merges.txt", lines(merges()));
  folder.write("tokenizer_config.json", tokenizer_config.dump());
  if (!map.is_null()) folder.write("special_tokens_map.json", map.dump());
}

}  // namespace colossal::text::clip
