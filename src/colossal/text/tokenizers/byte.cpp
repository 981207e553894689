#include "colossal/text/tokenizers/byte.h"

#include "colossal/base/error.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::text {

std::vector<int64_t> ByteTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  for (const char c : text) ids.push_back(static_cast<unsigned char>(c));
  return ids;
}

std::string ByteTokenizer::piece(int64_t id) const {
  require(id >= 0 && id <= kEnd, "tokenizer", "a byte token must be in [0, 256]: got ", id);
  return id == kEnd ? "" : std::string(1, static_cast<char>(id));
}

TokenizerFiles files_of_bytes() {
  using nlohmann::json;
  json ids = json::object();
  for (int byte = 0; byte < 256; ++byte) ids[to_byte_alphabet(std::string(1, static_cast<char>(byte)))] = byte;
  const json bytes{{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", false}, {"use_regex", true}};
  const json end{{"id", ByteTokenizer::kEnd},
                 {"content", ByteTokenizer::kEndSpelling},
                 {"single_word", false},
                 {"lstrip", false},
                 {"rstrip", false},
                 {"normalized", false},
                 {"special", true}};
  const json model{{"type", "BPE"},
                   {"dropout", nullptr},
                   {"unk_token", nullptr},
                   {"continuing_subword_prefix", nullptr},
                   {"end_of_word_suffix", nullptr},
                   {"fuse_unk", false},
                   {"byte_fallback", false},
                   {"ignore_merges", false},
                   {"vocab", ids},
                   {"merges", json::array()}};
  return {.tokenizer = {{"version", "1.0"},
                        {"truncation", nullptr},
                        {"padding", nullptr},
                        {"added_tokens", json::array({end})},
                        {"normalizer", nullptr},
                        {"pre_tokenizer", bytes},
                        {"post_processor", nullptr},
                        {"decoder", bytes},
                        {"model", model}},
          // A null stops readers from guessing that the end token also begins a text.
          .config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"eos_token", ByteTokenizer::kEndSpelling},
                     {"bos_token", nullptr},
                     {"clean_up_tokenization_spaces", false}}};
}

}  // namespace colossal::text
