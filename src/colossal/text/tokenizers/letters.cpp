#include "colossal/text/tokenizers/letters.h"

#include <algorithm>
#include <memory>
#include <sstream>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::text {
namespace {

constexpr std::string_view kWhiteSpace = " \t\n\v\f\r";

std::string stripped(std::string_view line) {
  const size_t first = line.find_first_not_of(kWhiteSpace);
  if (first == line.npos) return "";
  return std::string(line.substr(first, line.find_last_not_of(kWhiteSpace) - first + 1));
}

std::vector<std::string> lines_of(const std::string& file) {
  std::vector<std::string> lines;
  std::istringstream text(read_file(file, kMaxTokenizerBytes));
  for (std::string line; std::getline(text, line);) lines.push_back(stripped(line));
  return lines;
}

unsigned char first_byte(std::string_view token) { return static_cast<unsigned char>(token.front()); }

}  // namespace

LetterTokenizer::LetterTokenizer(std::vector<std::string> tokens, const Special& special, const std::string& name)
    : tokens_(std::move(tokens)), is_special_(tokens_.size()) {
  letters_.fill(-1);
  for (size_t id = 0; id < tokens_.size(); ++id) {
    const std::string& token = tokens_[id];
    if (token.size() == 1) letters_[first_byte(token)] = static_cast<int64_t>(id);
    if (token.size() > 1) longer_[first_byte(token)].push_back(static_cast<int64_t>(id));
  }
  for (std::vector<int64_t>& ids : longer_)
    // The last of equal tokens comes first, as a dictionary keeps the last id.
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) {
      return std::pair(tokens_[a].size(), a) > std::pair(tokens_[b].size(), b);
    });
  const auto find = [&](const char* what, const std::string& token, bool is_needed) {
    const int64_t id = id_of(token);
    require(id >= 0 || !is_needed, "tokenizer", name, ": the ", what, " token ", printable(token),
            " must be in the vocabulary; add it, or name another one in tokenizer_config.json");
    if (id >= 0) is_special_[static_cast<size_t>(id)] = true;
    return id;
  };
  begin_ = find("cls", special.begin, true);
  end_ = find("eos", special.end, true);
  unknown_ = find("unk", special.unknown, true);
  mask_ = find("mask", special.mask, false);
  find("pad", special.pad, false);
}

int64_t LetterTokenizer::id_of(std::string_view token) const {
  if (token.size() == 1) return letters_[first_byte(token)];
  if (token.empty()) return -1;
  for (const int64_t id : longer_[first_byte(token)])
    if (tokens_[static_cast<size_t>(id)] == token) return id;
  return -1;
}

void LetterTokenizer::scan(std::string_view text, const std::function<void(int64_t, size_t)>& take) const {
  bool in_rest = false;  // true = the byte before belongs to a run that became an unknown token
  for (size_t at = 0; at < text.size();) {
    const std::string_view rest = text.substr(at);
    int64_t id = letters_[first_byte(rest)];
    for (const int64_t longer : longer_[first_byte(rest)])
      if (rest.starts_with(tokens_[static_cast<size_t>(longer)])) {
        id = longer;
        break;
      }
    if (id >= 0) {
      take(id, at);
      at += tokens_[static_cast<size_t>(id)].size();
      in_rest = false;
      continue;
    }
    const bool is_space = kWhiteSpace.find(rest.front()) != kWhiteSpace.npos;
    if (!is_space && !in_rest) take(unknown_, at);
    in_rest = !is_space;
    ++at;
  }
}

std::vector<int64_t> LetterTokenizer::encode(std::string_view text) const {
  std::vector<int64_t> ids;
  ids.reserve(text.size());
  scan(text, [&](int64_t id, size_t) { ids.push_back(id); });
  return ids;
}

PlacedTokens LetterTokenizer::encode_placed(std::string_view text) const {
  PlacedTokens placed;
  scan(text, [&](int64_t id, size_t begin) {
    placed.ids.push_back(id);
    placed.begins.push_back(begin);
  });
  return placed;
}

std::vector<int64_t> LetterTokenizer::encode_prompt(std::string_view text) const {
  std::vector<int64_t> ids = encode(text);
  ids.insert(ids.begin(), begin_);
  return ids;
}

std::vector<int64_t> LetterTokenizer::encode_document(std::string_view text) const {
  std::vector<int64_t> ids = encode_prompt(text);
  ids.push_back(end_);
  return ids;
}

Encoding LetterTokenizer::encode_whole(std::string_view text) const {
  Encoding whole{encode_document(text), {}};
  whole.types.assign(whole.ids.size(), 0);
  return whole;
}

Encoding LetterTokenizer::encode_pair(std::string_view first, std::string_view second) const {
  Encoding pair = encode_whole(first);
  const std::vector<int64_t> more = encode(second);
  pair.ids.insert(pair.ids.end(), more.begin(), more.end());
  pair.ids.push_back(end_);
  pair.types.resize(pair.ids.size(), 1);
  return pair;
}

std::string LetterTokenizer::spelling(int64_t id) const {
  require(id >= 0 && id < vocabulary_size(), "tokenizer", "token ids must be in [0, ", vocabulary_size(), "): got ",
          id);
  return tokens_[static_cast<size_t>(id)];
}

std::string LetterTokenizer::piece(int64_t id) const {
  const std::string token = spelling(id);
  return is_special_[static_cast<size_t>(id)] ? "" : token;
}

bool is_letter_vocabulary(const std::string& file, const nlohmann::json& config) {
  if (const auto name = value_or<std::string>(config, "tokenizer_class", ""); !name.empty())
    return name.starts_with("EsmTokenizer");
  const std::vector<std::string> tokens = lines_of(file);
  const auto has = [&](const char* token) { return std::find(tokens.begin(), tokens.end(), token) != tokens.end(); };
  return has("<cls>") && has("<eos>") && has("<mask>");
}

std::unique_ptr<Tokenizer> read_letter_vocabulary(const std::string& file, const nlohmann::json& config) {
  LetterTokenizer::Special special;
  for (const auto& [key, token] : {std::pair("cls_token", &special.begin), std::pair("eos_token", &special.end),
                                   std::pair("pad_token", &special.pad), std::pair("unk_token", &special.unknown),
                                   std::pair("mask_token", &special.mask)}) {
    const nlohmann::json named = config.value(key, nlohmann::json());
    if (named.is_object()) *token = content_of(named);
    if (named.is_string()) *token = named.get<std::string>();
  }
  return std::make_unique<LetterTokenizer>(lines_of(file), special, file);
}

}  // namespace colossal::text
