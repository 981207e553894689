#include "colossal/text/pre_tokenizer.h"

#include <nlohmann/json.hpp>

#include "colossal/base/error.h"
#include "colossal/text/byte_alphabet.h"
#include "colossal/text/regex.h"

namespace colossal::text {
namespace {

using nlohmann::json;

// The words of GPT-2 (Radford et al. 2019): contractions, letters, digits or others with the space before them, spaces.
constexpr char kByteLevelWords[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

std::string type_of(const json& section) { return section.at("type").get<std::string>(); }

/// A Split or Replace pattern as a regular expression: {"Regex": ...} or {"String": ...}.
std::string pattern_of(const json& section) {
  const json& pattern = section.at("pattern");
  if (pattern.contains("Regex")) return pattern["Regex"].get<std::string>();
  std::string escaped;
  for (const char c : pattern.at("String").get<std::string>()) {
    if (std::string_view("\\^$.[]|()?*+{}-#/").find(c) != std::string_view::npos) escaped += '\\';
    escaped += c;
  }
  return escaped;
}

/// Matches and what lies between them, each a piece of its own; one of the two kinds may be left out.
void cut(const Regex& regex, const std::string& text, bool keep_matches, bool keep_gaps,
         std::vector<std::string>& out) {
  size_t end = 0;
  const auto add = [&](bool keep, size_t from, size_t to) {
    if (keep && to > from) out.push_back(text.substr(from, to - from));
  };
  for (const Regex::Match& match : regex.find_all(text)) {
    add(keep_gaps, end, match.begin);
    add(keep_matches, match.begin, match.end);
    end = match.end;
  }
  add(keep_gaps, end, text.size());
}

}  // namespace

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return text;
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size())
    out += text.substr(at, found - at) + to;
  return out + text.substr(at);
}

Normalizer::Normalizer(const json& section) {
  if (!section.is_null()) add(section);
}

void Normalizer::add(const json& section) {
  const std::string type = type_of(section);
  if (type == "Sequence") {
    for (const json& step : section.at("normalizers")) add(step);
  } else if (type == "Prepend") {
    steps_.push_back([prefix = section.at("prepend").get<std::string>()](const std::string& text) {
      return text.empty() ? text : prefix + text;
    });
  } else if (type == "Replace" && section.at("pattern").contains("String")) {
    steps_.push_back(
        [from = section["pattern"]["String"].get<std::string>(),
         to = section.at("content").get<std::string>()](const std::string& text) { return replaced(text, from, to); });
  } else {
    throw Error("tokenizer",
                concat("the normalizer ", type, " is not understood, only Prepend, Replace of a string, Sequence"));
  }
}

std::string Normalizer::operator()(std::string text) const {
  for (const auto& step : steps_) text = step(text);
  return text;
}

PreTokenizer::PreTokenizer(const json& section) {
  if (!section.is_null()) add(section);
}

void PreTokenizer::add(const json& section) {
  const std::string type = type_of(section);
  if (type == "Sequence") {
    for (const json& step : section.at("pretokenizers")) add(step);
  } else if (type == "ByteLevel") {
    add_byte_level(section);
  } else if (type == "Split") {
    add_split(section);
  } else if (type == "Digits") {
    const Regex digits(section.value("individual_digits", false) ? R"(\p{N})" : R"(\p{N}+)");
    steps_.push_back([digits](const std::string& text, bool, auto& out) { cut(digits, text, true, true, out); });
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else {
    throw Error("tokenizer", concat("the pre_tokenizer ", type,
                                    " is not understood, only ByteLevel, Split, Digits, Metaspace, Sequence"));
  }
}

void PreTokenizer::add_byte_level(const json& section) {
  byte_level_ = true;
  if (section.value("add_prefix_space", true)) {
    steps_.push_back(
        [](const std::string& text, bool, auto& out) { out.push_back(text[0] == ' ' ? text : " " + text); });
  }
  if (section.value("use_regex", true)) {
    const Regex words(kByteLevelWords);
    steps_.push_back([words](const std::string& text, bool, auto& out) { cut(words, text, true, true, out); });
  }
  steps_.push_back([](const std::string& text, bool, auto& out) { out.push_back(to_byte_alphabet(text)); });
}

void PreTokenizer::add_split(const json& section) {
  const std::string behavior = section.at("behavior");
  const bool invert = section.value("invert", false);
  require(behavior == "Isolated" || behavior == "Removed", "tokenizer", "the Split behavior ", behavior,
          " is not understood, only Isolated and Removed");
  const bool all = behavior == "Isolated";  // inverted or not, the pieces are the same
  const Regex regex(pattern_of(section));
  steps_.push_back(
      [=](const std::string& text, bool, auto& out) { cut(regex, text, all || invert, all || !invert, out); });
}

void PreTokenizer::add_metaspace(const json& section) {
  const std::string mark = section.value("replacement", kMetaspace);
  const std::string scheme =
      section.value("prepend_scheme", section.value("add_prefix_space", true) ? "always" : "never");
  const bool split = section.value("split", true);
  const Regex words(pattern_of({{"pattern", {{"String", mark}}}}) + "?[^" + mark + "]*");
  steps_.push_back([=](const std::string& text, bool first, auto& out) {
    std::string marked = replaced(text, " ", mark);
    const bool prepend = scheme == "always" || (scheme == "first" && first);
    if (prepend && marked.rfind(mark, 0) != 0) marked = mark + marked;
    if (split) {
      cut(words, marked, true, true, out);
    } else {
      out.push_back(marked);
    }
  });
}

std::vector<std::string> PreTokenizer::operator()(const std::string& text, bool first) const {
  std::vector<std::string> pieces;
  if (!text.empty()) pieces.push_back(text);
  for (const Step& step : steps_) {
    std::vector<std::string> smaller;
    for (size_t i = 0; i < pieces.size(); ++i) step(pieces[i], first && i == 0, smaller);
    pieces = std::move(smaller);
  }
  return pieces;
}

}  // namespace colossal::text
