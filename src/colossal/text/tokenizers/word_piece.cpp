#include "colossal/text/tokenizers/word_piece.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

int32_t unknown_id(const Vocabulary& vocabulary, const std::string& unknown) {
  const int32_t id = vocabulary.id_of(unknown);
  require(id >= 0, "tokenizer", "a word has no token, and the vocabulary no unk_token ", printable(unknown));
  return id;
}

int64_t characters_of(std::string_view text) {
  int64_t count = 0;
  for (size_t at = 0; at < text.size(); ++count) at += first_code_point(text.substr(at)).length;
  return count;
}

}  // namespace

WordPiece::WordPiece(Vocabulary vocabulary, Options options)
    : WordModel(std::move(vocabulary)), options_(std::move(options)) {}

void WordPiece::encode(std::string_view word, std::vector<int64_t>& ids) const {
  if (characters_of(word) > options_.characters) return ids.push_back(unknown_id(vocabulary_, options_.unknown));
  const size_t before = ids.size();
  for (size_t begin = 0; begin < word.size();) {
    size_t end = std::min(word.size(), begin + vocabulary_.longest());
    int32_t id = -1;
    std::string token;
    for (; end > begin && id < 0; --end) {
      const bool whole = end == word.size() || (static_cast<unsigned char>(word[end]) & 0xC0) != 0x80;
      if (!whole) continue;
      token.assign(begin > 0 ? options_.prefix : "").append(word.substr(begin, end - begin));
      id = vocabulary_.id_of(token);
      if (id >= 0) break;
    }
    if (id < 0) {
      ids.resize(before);
      return ids.push_back(unknown_id(vocabulary_, options_.unknown));
    }
    ids.push_back(id);
    begin = end;
  }
}

WordLevel::WordLevel(Vocabulary vocabulary, std::string unknown)
    : WordModel(std::move(vocabulary)), unknown_(std::move(unknown)) {}

void WordLevel::encode(std::string_view word, std::vector<int64_t>& ids) const {
  const int32_t id = vocabulary_.id_of(word);
  ids.push_back(id >= 0 ? id : unknown_id(vocabulary_, unknown_));
}

}  // namespace colossal::text
