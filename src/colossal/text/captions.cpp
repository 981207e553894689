#include "colossal/text/captions.h"

#include <algorithm>
#include <cctype>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/clip_sections.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::text {
namespace {

constexpr int64_t kBytes = 256;  // tokens of the byte tokenizer before its end, which captions do not use

constexpr char kT5End[] = "</s>", kT5Pad[] = "<pad>";

/// Returns the spelling of the pad token of a folder, or `otherwise`; empty = it names none.
std::string pad_of(const std::string& folder, const char* otherwise) {
  const nlohmann::json config = read_tokenizer_config(folder);
  const auto found = config.find("pad_token");
  if (found == config.end()) return otherwise;
  if (found->is_object()) return content_of(*found);
  return found->is_string() ? found->get<std::string>() : "";
}

/// Returns the id of the token with that spelling; -1 = there is none. encode() would find the end of a word.
int64_t id_of(const Tokenizer& tokenizer, const std::string& spelling) {
  for (int64_t id = 0; id < tokenizer.vocabulary_size() && !spelling.empty(); ++id)
    if (tokenizer.spelling(id) == spelling) return id;
  return -1;
}

}  // namespace

Captions::Captions(std::shared_ptr<const Tokenizer> tokenizer, const Ids& ids, int64_t vocabulary, int64_t length)
    : tokenizer_(std::move(tokenizer)), ids_(ids), vocabulary_(vocabulary), length_(length) {
  const std::pair<const char*, int64_t> rows[] = {{"begin", std::max<int64_t>(ids.begin, 0)},  // -1 = there is none
                                                  {"end", ids.end},
                                                  {"pad", ids.pad}};
  for (const auto& [name, id] : rows)
    require(id >= 0 && id < vocabulary, "captions", "a tokenizer of captions must have a ", name,
            " token in its vocabulary of ", vocabulary, ": got ", id,
            "; name the tokenizer of the text encoder, or bytes");
  require(length >= 2, "captions", "the length of captions must be at least 2: got ", length);
}

Captions Captions::with_words(const std::vector<CaptionWord>& words, int64_t first) const {
  Captions more = *this;
  for (const CaptionWord& word : words) {
    more.words_.push_back({word, first});
    first += word.rows;
  }
  return more;
}

const Captions::PlacedWord* Captions::word_at(std::string_view text, size_t at) const {
  const auto is_letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || (c & 0x80) != 0; };
  const PlacedWord* longest = nullptr;
  for (const PlacedWord& one : words_) {
    const std::string& word = one.word.word;
    if (text.substr(at, word.size()) != word) continue;
    const size_t end = at + word.size();
    const bool is_inside = (at > 0 && is_letter(word.front()) && is_letter(text[at - 1])) ||
                           (end < text.size() && is_letter(word.back()) && is_letter(text[end]));
    if (!is_inside && (!longest || word.size() > longest->word.word.size())) longest = &one;
  }
  return longest;
}

PlacedTokens Captions::placed(std::string_view text) const {
  if (words_.empty()) return tokenizer_->encode_placed(text);
  PlacedTokens all;
  size_t begin = 0;
  const auto add_plain = [&](size_t end) {
    if (begin == end) return;
    const PlacedTokens part = tokenizer_->encode_placed(text.substr(begin, end - begin));
    all.ids.insert(all.ids.end(), part.ids.begin(), part.ids.end());
    for (const size_t at : part.begins) all.begins.push_back(begin + at);
  };
  for (size_t at = 0; at < text.size();) {
    const PlacedWord* const found = word_at(text, at);
    if (!found) {
      ++at;
      continue;
    }
    add_plain(at);
    for (int64_t i = 0; i < found->word.rows; ++i) {
      all.ids.push_back(found->first + i);
      all.begins.push_back(at);
    }
    at += found->word.word.size();
    begin = at;
  }
  add_plain(text.size());
  return all;
}

Caption Captions::operator()(std::string_view text) const {
  PlacedTokens tokens = placed(text);
  const auto fitting = static_cast<size_t>(this->fitting());
  Caption caption;
  if (tokens.ids.size() > fitting) {
    caption.lost = valid_utf8(text.substr(tokens.begins.at(fitting)));
    tokens.ids.resize(fitting);
  }
  if (ids_.begin >= 0) caption.ids.push_back(ids_.begin);
  caption.ids.insert(caption.ids.end(), tokens.ids.begin(), tokens.ids.end());
  caption.ids.push_back(ids_.end);
  caption.length = static_cast<int64_t>(caption.ids.size());
  caption.ids.resize(static_cast<size_t>(length_), ids_.pad);
  return caption;
}

std::string Captions::warning(const Caption& caption) const {
  if (caption.lost.empty()) return "";
  return concat("the caption is longer than ", fitting(), " tokens; lost: ", printable(caption.lost));
}

Captions make_captions(const std::string& name, int64_t length, bool begins) {
  std::shared_ptr<const Tokenizer> tokenizer = make_tokenizer(name);
  if (name == "bytes")
    return {std::move(tokenizer), {begins ? kBytes : -1, kBytes + 1, kBytes + 2}, kBytes + 3, length};
  Captions::Ids ids{.begin = -1, .end = id_of(*tokenizer, kT5End)};
  if (begins) {
    ids = {.begin = tokenizer->begin_id(), .end = tokenizer->end_id()};
    require(ids.begin >= 0, "captions", "a tokenizer of captions must have a begin token in its vocabulary of ",
            tokenizer->vocabulary_size(), ": got -1; name CLIP's tokenizer, or bytes");
  }
  ids.pad = id_of(*tokenizer, pad_of(folder_of_tokenizer(name), begins ? kClipEnd : kT5Pad));
  const int64_t vocabulary = tokenizer->vocabulary_size();
  return {std::move(tokenizer), ids, vocabulary, length};
}

}  // namespace colossal::text
