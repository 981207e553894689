#include "colossal/text/tokenizers/decoder.h"

#include <algorithm>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

using nlohmann::json;
using Tokens = std::vector<std::string>;

/// Undoes the spaces that BERT puts before punctuation and inside contractions.
std::string cleaned(std::string text) {
  const std::pair<const char*, const char*> rules[] = {
      {" .", "."},   {" ?", "?"},           {" !", "!"},   {" ,", ","},     {" ' ", "'"},   {" n't", "n't"},
      {" 'm", "'m"}, {" do not", " don't"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : rules) text = replaced(text, from, to);
  return text;
}

/// Returns the byte that a token like <0x0A> stands for; -1 = the token is not of this form.
int byte_of_token(const std::string& token) {
  if (token.size() != 6 || token.rfind("<0x", 0) != 0 || token[5] != '>') return -1;
  int byte = 0;
  for (size_t i = 3; i < 5; ++i) {
    const char c = token[i];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                             : -1;
    if (digit < 0) return -1;
    byte = byte * 16 + digit;
  }
  return byte;
}

void fuse(Tokens& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  tokens = {std::move(text)};
}

/// Removes `character` at most `start` times from the front of the text and at most `stop` times from its end.
std::string without_character(const std::string& text, const std::string& character, int64_t start, int64_t stop) {
  std::string_view rest = text;
  for (int64_t i = 0; i < start && rest.starts_with(character); ++i) rest.remove_prefix(character.size());
  for (int64_t i = 0; i < stop && rest.ends_with(character); ++i) rest.remove_suffix(character.size());
  return std::string(rest);
}

std::string with_replaced(const std::string& text, const Regex& pattern, const std::string& content) {
  std::string out;
  size_t end = 0;
  for (const Regex::Match& match : pattern.find_all(text)) {
    out.append(text, end, match.begin - end).append(content);
    end = match.end;
  }
  return out.append(text, end);
}

void decode_ctc(Tokens& tokens, const std::string& pad, const std::string& delimiter, bool cleanup) {
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  for (std::string& token : tokens) {
    token = replaced(token, pad, "");
    if (cleanup) token = replaced(cleaned(token), delimiter, " ");
  }
}

/// A change of a single token. `is_first`: no token precedes it. `is_inner`: it is a piece within a fused text.
using TokenChange = std::function<void(std::string& token, bool is_first, bool is_inner)>;

TokenChange word_piece(const json& section) {
  return [prefix = value_or<std::string>(section, "prefix", "##"), cleanup = value_or(section, "cleanup", true)](
             std::string& token, bool is_first, bool) {
    if (!is_first) token = token.rfind(prefix, 0) == 0 ? token.substr(prefix.size()) : " " + token;
    if (cleanup) token = cleaned(token);
  };
}

TokenChange metaspace(const json& section) {
  const std::string scheme = prepend_scheme_of(section);
  return [mark = value_or<std::string>(section, "replacement", kMetaspace), strips = scheme != "never"](
             std::string& token, bool is_first, bool) { token = replaced(token, mark, is_first && strips ? "" : " "); };
}

TokenChange strip(const json& section) {
  const auto character = value_or<std::string>(section, "content", " ");
  const auto start = value_or<int64_t>(section, "start", 0), stop = value_or<int64_t>(section, "stop", 0);
  require(!character.empty() && first_code_point(character).length == character.size(), "tokenizer",
          "the content of the decoder Strip must be one character: got ", printable(character));
  require(start >= 0 && stop >= 0, "tokenizer", "start and stop of the decoder Strip must not be negative: got ", start,
          " and ", stop);
  return [character, start, stop](std::string& token, bool, bool is_inner) {
    token = without_character(token, character, is_inner ? 0 : start, is_inner ? 0 : stop);
  };
}

/// Returns the change of each token that a section describes; no function if its type does not change single tokens.
TokenChange change_of(const std::string& type, const json& section) {
  if (type == "ByteLevel") return [](std::string& token, bool, bool) { token = from_byte_alphabet(token); };
  if (type == "ByteFallback") {
    return [](std::string& token, bool, bool) {
      if (const int byte = byte_of_token(token); byte >= 0) token = std::string(1, static_cast<char>(byte));
    };
  }
  if (type == "Replace") {
    return [pattern = pattern_of(section), content = content_of(section)](std::string& token, bool, bool) {
      token = with_replaced(token, pattern, content);
    };
  }
  if (type == "WordPiece") return word_piece(section);
  if (type == "Metaspace") return metaspace(section);
  if (type == "Strip") return strip(section);
  return {};
}

}  // namespace

Decoder::Decoder(const json& section) : joins_with_spaces_(section.is_null()) {
  if (!section.is_null()) add(section);
}

void Decoder::add(const json& section) {
  const std::string type = type_of(section);
  if (type == "Sequence") {
    for (const json& step : section.at("decoders")) add(step);
  } else if (const TokenChange change = change_of(type, section)) {
    steps_.push_back([change](State& state) {
      for (size_t i = 0; i < state.tokens.size(); ++i)
        change(state.tokens[i], i == 0 && !state.within, state.within && state.fused);
    });
  } else if (type == "BPEDecoder") {
    const auto suffix = value_or<std::string>(section, "suffix", "</w>");
    steps_.push_back([suffix](State& state) {  // a word that is not the last is followed by a space
      for (std::string& token : state.tokens)
        token = replaced(token, suffix, &token == &state.tokens.back() && !state.within ? "" : " ");
    });
  } else if (type == "Fuse") {
    steps_.push_back([](State& state) {
      fuse(state.tokens);
      state.fused = true;
    });
  } else if (type == "CTC") {
    const auto pad = value_or<std::string>(section, "pad_token", "<pad>");
    const auto delimiter = value_or<std::string>(section, "word_delimiter_token", "|");
    const bool cleanup = value_or(section, "cleanup", true);
    steps_.push_back([=](State& state) { decode_ctc(state.tokens, pad, delimiter, cleanup); });
  } else {
    throw Error("tokenizer", concat("the decoder ", type,
                                    " is not supported, only Sequence, ByteLevel, WordPiece, Metaspace, BPEDecoder, "
                                    "ByteFallback, Fuse, Strip, Replace, CTC"));
  }
}

std::string Decoder::operator()(std::vector<std::string> tokens, bool within) const {
  State state{std::move(tokens), within};
  for (const Step& step : steps_) step(state);
  std::string text;
  for (size_t i = 0; i < state.tokens.size(); ++i) {
    if (joins_with_spaces_ && (i > 0 || within)) text += ' ';
    text += state.tokens[i];
  }
  return text;
}

}  // namespace colossal::text
