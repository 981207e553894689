#include "colossal/text/tokenizer.h"

#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/text/byte_tokenizer.h"
#include "colossal/text/hugging_face_tokenizer.h"
#include "colossal/text/utf8.h"

namespace colossal::text {

std::string Tokenizer::decode(const std::vector<int64_t>& ids) const {
  std::string text;
  for (int64_t id : ids) text += piece(id);
  return text;
}

std::unique_ptr<Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_unique<ByteTokenizer>();
  std::error_code none;
  require(std::filesystem::exists(name, none), "tokenizer", "there is no ", name,
          ": a tokenizer must be \"bytes\", or a tokenizer.json or a folder with one");
  return read_hugging_face_tokenizer(name);
}

namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";  // U+FFFD

/// Moves what is complete from the front of `pending` to the result.
std::string take_complete(std::string& pending) {
  std::string text;
  size_t at = 0;
  while (at < pending.size()) {
    const Utf8Character next = first_character(std::string_view(pending).substr(at));
    if (next.kind == Utf8::Incomplete) break;
    text += next.kind == Utf8::Complete ? pending.substr(at, next.length) : kReplacement;
    at += next.length;
  }
  pending.erase(0, at);
  return text;
}

}  // namespace

std::string TextStream::push(int64_t id) {
  pending_ += tokenizer_.piece(id);
  return take_complete(pending_);
}

std::string TextStream::finish() {
  std::string text = take_complete(pending_);
  if (!pending_.empty()) text += kReplacement;
  pending_.clear();
  return text;
}

}  // namespace colossal::text
