#include "colossal/text/tokenizers/byte.h"

#include "colossal/base/error.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/written_sections.h"

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
  const json bytes = byte_level_section(false);
  TokenizerSections<json> sections{.model = bpe_section("", "", "", ids, json::array()),
                                   .pre_tokenizer = bytes,
                                   .decoder = bytes,
                                   .added_tokens = json::array()};
  sections.added_tokens.emplace_back(added_token(ByteTokenizer::kEnd, ByteTokenizer::kEndSpelling));
  return {.tokenizer = std::move(sections).to_json(TokenizerSections<json>::head()),
          // A null stops readers from guessing that the end token also begins a text.
          .config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                     {"eos_token", ByteTokenizer::kEndSpelling},
                     {"bos_token", nullptr},
                     {"clean_up_tokenization_spaces", false}}};
}

}  // namespace colossal::text
