#include "colossal/text/tokenizers/normalizer.h"

#include <cstring>
#include <numeric>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

// Fields of one unit of the double array. See: https://github.com/s-yata/darts-clone.
bool has_leaf(uint32_t unit) { return unit >> 8 & 1; }
uint32_t value_of(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t label_of(uint32_t unit) { return unit & 0x800000FF; }
constexpr size_t kMaxValueBytes = 1024;  // bytes; NFKC needs 33. The limit bounds the output, because each character of
                                         // a text may be replaced

uint32_t offset_of(uint32_t unit) { return unit >> 10 << ((unit & 0x200) >> 6); }

using nlohmann::json;
using Result = Normalizer::Result;

/// The text that a step makes from its input, and the origins of its bytes if they are wanted.
class Output {
 public:
  explicit Output(Result& result) : result_(result) { text.reserve(result.text.size()); }
  /// Gives the bytes that were appended since the last call the origin of byte `at` of the input.
  void made_from(size_t at) {
    if (result_.places) origins_.resize(text.size(), at < result_.origins.size() ? result_.origins[at] : 0);
  }
  /// Appends bytes [begin, end) of the input.
  void copy(size_t begin, size_t end) {
    text.append(result_.text, begin, end - begin);
    if (!result_.places) return;
    const auto first = result_.origins.begin();
    origins_.insert(origins_.end(), first + static_cast<std::ptrdiff_t>(begin),
                    first + static_cast<std::ptrdiff_t>(end));
  }
  /// Replaces the input by this output.
  void finish() {
    result_.text = std::move(text);
    if (result_.places) result_.origins = std::move(origins_);
  }
  std::string text;

 private:
  Result& result_;
  std::vector<size_t> origins_;
};

/// Returns a step that processes each character: change(c, out) appends the replacement of c, which may be empty.
template <class Change>
auto by_character(Change change) {
  return [change](Result& result) {
    Output out(result);
    const std::string_view text = result.text;
    for (size_t at = 0; at < text.size();) {
      const CodePoint c = first_code_point(text.substr(at));
      change(c.value, out.text);
      out.made_from(at);
      if (at == 0 && out.text.empty()) result.keeps_front = false;
      at += c.length;
    }
    out.finish();
  };
}

template <class Is>
auto without(Is is) {
  return by_character([is](uint32_t c, std::string& out) {
    if (!is(c)) append_utf8(out, c);
  });
}

/// Normal forms do not join characters of two grapheme clusters, so the origins are found cluster by cluster.
auto form_step(NormalForm form) {
  return [form](Result& result) {
    std::string text = normalized(result.text, form);
    if (!result.places) {
      result.text = std::move(text);
      return;
    }
    Output out(result);
    for (size_t at = 0; at < result.text.size();) {
      const size_t end = at + first_grapheme(std::string_view(result.text).substr(at));
      const std::string_view cluster = std::string_view(result.text).substr(at, end - at);
      const std::string made = normalized(cluster, form);
      if (made == cluster) {
        out.copy(at, end);
      } else {
        out.text += made;
        out.made_from(at);
      }
      at = end;
    }
    if (out.text != text) {  // only if a Unicode version divides clusters where its forms join characters
      out.text = std::move(text);
      out.made_from(result.text.size());
    }
    out.finish();
  };
}

/// Drops control characters and replaces white space by spaces.
void clean(uint32_t c, std::string& out) {
  const bool is_blank = c == '\t' || c == '\n' || c == '\r';
  if (!is_blank && (c == 0 || c == 0xFFFD || is_control_or_format(c))) return;
  append_utf8(out, is_space(c) ? ' ' : c);
}

void space_chinese(uint32_t c, std::string& out) {
  if (is_chinese(c)) out += ' ';
  append_utf8(out, c);
  if (is_chinese(c)) out += ' ';
}

/// Applies sentencepiece's rules for translation (nmt), which drop some characters and replace others by spaces.
void nmt(uint32_t c, std::string& out) {
  if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return;
  const bool blank = c == 9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  append_utf8(out, blank ? ' ' : c);
}

void strip(Result& result, bool left, bool right) {
  std::string_view text = result.text;
  size_t begin = 0, end = 0;
  bool blank = true;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    at += c.length;
    if (!is_space(c.value)) {
      end = at;
      blank = false;
    } else if (blank) {
      begin = at;
    }
  }
  if (!left || begin == 0) begin = 0;
  result.keeps_front &= begin == 0;
  if (!right) end = text.size();
  Output out(result);
  if (begin < end) out.copy(begin, end);
  out.finish();
}

void replace(Result& result, const Regex& pattern, const std::string& content) {
  const std::vector<Regex::Match> matches = pattern.find_all(result.text);
  if (matches.empty()) return;
  Output out(result);
  size_t end = 0;
  for (const Regex::Match& match : matches) {
    out.copy(end, match.begin);
    out.text += content;
    out.made_from(match.begin);
    if (match.begin == 0 && match.end > 0 && content.empty()) result.keeps_front = false;
    end = match.end;
  }
  out.copy(end, result.text.size());
  out.finish();
}

/// Replaces every `from`, which is not empty, by `to`.
void replace(Result& result, const std::string& from, const std::string& to) {
  if (!result.places) {
    result.text = replaced(result.text, from, to);
    return;
  }
  Output out(result);
  size_t at = 0;
  for (size_t found; (found = result.text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.copy(at, found);
    out.text += to;
    out.made_from(found);
  }
  out.copy(at, result.text.size());
  out.finish();
}

void prepend(Result& result, const std::string& prefix) {
  if (result.text.empty()) return;
  Output out(result);
  out.text = prefix;
  out.made_from(0);
  out.copy(0, result.text.size());
  out.finish();
}

/// Spells the text in the byte alphabet.
void spell_bytes(Result& result) {
  Output out(result);
  for (size_t at = 0; at < result.text.size(); ++at) {
    out.text += to_byte_alphabet(std::string_view(result.text).substr(at, 1));
    out.made_from(at);
  }
  out.finish();
}

/// Maps a cluster of fewer than six bytes of which any prefix has a rule to that rule's value. Other clusters are
/// mapped character by character. The package does so; sentencepiece does not.
void map_characters(Result& result, const Charsmap& map) {
  Output out(result);
  const std::string_view text = result.text;
  for (size_t at = 0; at < text.size();) {
    const bool is_front = at == 0;
    const size_t end = at + first_grapheme(text.substr(at));
    const auto rule = end - at < 6 ? map.shortest(text.substr(at, end - at)) : std::nullopt;
    if (rule) {
      out.text += rule->value;
      out.made_from(at);
      at = end;
    }
    while (at < end) {
      const std::string_view character = text.substr(at, first_code_point(text.substr(at, end - at)).length);
      const auto own = map.shortest(character);
      out.text += own ? own->value : character;
      out.made_from(at);
      at += character.size();
    }
    if (is_front && out.text.empty()) result.keeps_front = false;
  }
  out.finish();
}

}  // namespace

Charsmap::Charsmap(std::string_view bytes) {
  if (bytes.empty()) return;
  uint32_t size = 0;
  require(bytes.size() > sizeof size, "tokenizer", "the precompiled character map ends within its head");
  std::memcpy(&size, bytes.data(), sizeof size);
  bytes.remove_prefix(sizeof size);
  require(size % 4 == 0 && size >= 4 && size <= bytes.size(), "tokenizer",
          "the trie of the precompiled character map must fit in its ", bytes.size(), " bytes: got ", size);
  units_.resize(size / 4);
  std::memcpy(units_.data(), bytes.data(), size);
  values_ = bytes.substr(size);
  require(values_.empty() || values_.back() == '\0', "tokenizer",
          "the precompiled character map ends within a replacement");
  for (size_t begin = 0, end; begin < values_.size(); begin = end + 1) {
    end = values_.find('\0', begin);
    require(end - begin <= kMaxValueBytes, "tokenizer", "a replacement of the precompiled character map must be of at ",
            "most ", kMaxValueBytes, " bytes: got ", end - begin);
  }
}

std::string_view Charsmap::value_at(uint32_t offset) const {
  if (offset >= values_.size()) return {};
  return std::string_view(values_).substr(offset, values_.find('\0', offset) - offset);
}

/// Calls found(length, offset) for each prefix of `text` that is in the trie, until it returns false.
template <class Found>
void Charsmap::prefixes(std::string_view text, const Found& found) const {
  if (empty()) return;
  size_t at = offset_of(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    at ^= byte;
    if (byte == 0 || at >= units_.size() || label_of(units_[at]) != byte) return;
    const uint32_t unit = units_[at];
    at ^= offset_of(unit);
    if (has_leaf(unit) && (at >= units_.size() || !found(i + 1, value_of(units_[at])))) return;
  }
}

std::optional<Charsmap::Rule> Charsmap::shortest(std::string_view text) const {
  std::optional<Rule> rule;
  prefixes(text, [&](size_t length, uint32_t offset) {
    rule = {length, value_at(offset)};
    return false;
  });
  return rule;
}

std::optional<Charsmap::Rule> Charsmap::longest(std::string_view text) const {
  size_t length = 0;
  uint32_t offset = 0;
  prefixes(text, [&](size_t next, uint32_t value) {
    length = next;
    offset = value;
    return true;
  });
  if (length == 0) return std::nullopt;
  return Rule{length, value_at(offset)};
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return text;
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size())
    out.append(text, at, found - at).append(to);
  return out.append(text, at);
}

Normalizer::Normalizer(const json& section) {
  if (!section.is_null()) add(section);
}

void Normalizer::add(const json& section) {
  const std::string type = type_of(section);
  byte_level_ = type == "ByteLevel";
  if (type == "Sequence") {
    for (const json& step : section.at("normalizers")) add(step);
  } else if (type == "NFC" || type == "NFD" || type == "NFKC" || type == "NFKD") {
    steps_.push_back(form_step(type == "NFC"    ? NormalForm::Nfc
                               : type == "NFD"  ? NormalForm::Nfd
                               : type == "NFKC" ? NormalForm::Nfkc
                                                : NormalForm::Nfkd));
  } else if (type == "Lowercase") {
    steps_.push_back(by_character([](uint32_t c, std::string& out) { append_lower(out, c); }));
  } else if (type == "StripAccents") {
    steps_.push_back(without(is_mark));
  } else if (type == "Nmt") {
    steps_.push_back(by_character(nmt));
  } else if (type == "Strip") {
    const bool left = value_or(section, "strip_left", true), right = value_or(section, "strip_right", true);
    steps_.push_back([left, right](Result& result) { strip(result, left, right); });
  } else if (type == "BertNormalizer") {
    const bool lower = value_or(section, "lowercase", true);
    if (value_or(section, "clean_text", true)) steps_.push_back(by_character(clean));
    if (value_or(section, "handle_chinese_chars", true)) steps_.push_back(by_character(space_chinese));
    if (value_or(section, "strip_accents", lower)) {
      steps_.push_back(form_step(NormalForm::Nfd));
      steps_.push_back(without(is_nonspacing_mark));
    }
    if (lower) add({{"type", "Lowercase"}});
  } else if (type == "Prepend") {
    steps_.push_back([prefix = section.at("prepend").get<std::string>()](Result& result) { prepend(result, prefix); });
  } else if (type == "Replace") {
    const std::string content = content_of(section);
    const auto pattern = pattern_text(section, "String");
    if (pattern && !pattern->empty() && !content.empty()) {
      steps_.push_back([from = *pattern, content](Result& result) { replace(result, from, content); });
    } else {
      steps_.push_back([regex = pattern_of(section), content](Result& result) { replace(result, regex, content); });
    }
  } else if (type == "Precompiled") {
    const auto map =
        std::make_shared<const Charsmap>(from_base64(value_or<std::string>(section, "precompiled_charsmap", "")));
    steps_.push_back([map](Result& result) { map_characters(result, *map); });
  } else if (type == "ByteLevel") {
    steps_.push_back(spell_bytes);
  } else {
    throw Error("tokenizer",
                concat("the normalizer ", type,
                       " is not supported, only Sequence, NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, "
                       "BertNormalizer, Replace, Prepend, Nmt, Precompiled, ByteLevel"));
  }
}

Normalizer::Result Normalizer::operator()(std::string text, bool places) const {
  Result result{.text = std::move(text), .places = places};
  if (places) {
    result.origins.resize(result.text.size());
    std::iota(result.origins.begin(), result.origins.end(), size_t{0});
  }
  for (const Step& step : steps_) step(result);
  return result;
}

}  // namespace colossal::text
