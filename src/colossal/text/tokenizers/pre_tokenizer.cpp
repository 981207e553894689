#include "colossal/text/tokenizers/pre_tokenizer.h"

#include <algorithm>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/regex.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

using nlohmann::json;

enum class Behavior { Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous };

Behavior behavior_of(const json& section, const char* otherwise = nullptr) {
  const auto name =
      otherwise ? value_or<std::string>(section, "behavior", otherwise) : section.at("behavior").get<std::string>();
  if (name == "Isolated") return Behavior::Isolated;
  if (name == "Removed") return Behavior::Removed;
  if (name == "MergedWithPrevious") return Behavior::MergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::MergedWithNext;
  require(name == "Contiguous", "tokenizer", "the behavior ", name,
          " is not supported, only Isolated, Removed, MergedWithPrevious, MergedWithNext, Contiguous");
  return Behavior::Contiguous;
}

struct Part {
  size_t begin, end;
  bool is_match;
};

/// Returns the matches and the text between them, in order.
std::vector<Part> parts_of(std::string_view text, const Regex& regex) {
  std::vector<Part> parts;
  size_t end = 0;
  for (const Regex::Match& match : regex.find_all(text)) {
    if (match.begin > end) parts.push_back({end, match.begin, false});
    parts.push_back({match.begin, match.end, true});
    end = match.end;
  }
  if (end < text.size()) parts.push_back({end, text.size(), false});
  return parts;
}

/// Splits the text so that each character for which `is` returns true is a match of its own.
template <class Is>
std::vector<Part> parts_by(std::string_view text, const Is& is) {
  std::vector<Part> parts;
  size_t gap = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = first_code_point(text.substr(at));
    if (is(c.value)) {
      if (at > gap) parts.push_back({gap, at, false});
      parts.push_back({at, at + c.length, true});
      gap = at + c.length;
    }
    at += c.length;
  }
  if (gap < text.size()) parts.push_back({gap, text.size(), false});
  return parts;
}

/// Joins the parts as `behavior` requires. Removed drops the matches.
std::vector<Part> joined(std::vector<Part> parts, Behavior behavior) {
  if (behavior == Behavior::Removed) {
    std::erase_if(parts, [](const Part& part) { return part.is_match; });
    return parts;
  }
  if (behavior == Behavior::Isolated) return parts;
  const bool backwards = behavior == Behavior::MergedWithNext;
  if (backwards) std::reverse(parts.begin(), parts.end());
  std::vector<Part> out;
  bool before = false;
  for (const Part& part : parts) {
    const bool joins = behavior == Behavior::Contiguous ? part.is_match == before : part.is_match && !before;
    before = part.is_match;
    if (joins && !out.empty()) {
      (backwards ? out.back().begin : out.back().end) = backwards ? part.begin : part.end;
    } else {
      out.push_back(part);
    }
  }
  if (backwards) std::reverse(out.begin(), out.end());
  return out;
}

void emit(const Word& word, const std::vector<Part>& parts, Words& out) {
  for (const Part& part : parts)
    if (part.end > part.begin) out.list.push_back(word.part(part.begin, part.end));
}

template <class Is>
auto split_by(Is is, Behavior behavior) {
  return [is, behavior](const Word& word, Words& out) { emit(word, joined(parts_by(word.text, is), behavior), out); };
}

auto split(const Regex& regex, Behavior behavior, bool invert) {
  return [=](const Word& word, Words& out) {
    std::vector<Part> parts = parts_of(word.text, regex);
    for (Part& part : parts) part.is_match ^= invert;
    emit(word, joined(std::move(parts), behavior), out);
  };
}

/// Splits by the pattern \w+|[^\w\s]+.
void split_words(const Word& word, Words& out) {
  const auto kind = [](uint32_t c) { return is_word(c) ? 1 : is_space(c) ? 0 : 2; };
  for (size_t at = 0; at < word.text.size();) {
    const CodePoint first = first_code_point(word.text.substr(at));
    size_t end = at + first.length;
    while (end < word.text.size()) {
      const CodePoint next = first_code_point(word.text.substr(end));
      if (kind(next.value) != kind(first.value)) break;
      end += next.length;
    }
    if (kind(first.value) != 0) out.list.push_back(word.part(at, end));
    at = end;
  }
}

auto split_lengths(int64_t length) {
  require(length > 0, "tokenizer", "the length of a FixedLength must be positive: got ", length);
  return [length](const Word& word, Words& out) {
    for (size_t at = 0; at < word.text.size();) {
      size_t end = at;
      for (int64_t i = 0; i < length && end < word.text.size(); ++i)
        end += first_code_point(word.text.substr(end)).length;
      out.list.push_back(word.part(at, end));
      at = end;
    }
  };
}

/// A word that a step makes from another one, with the origins of its bytes if they are wanted.
class WordMaker {
 public:
  WordMaker(const Word& from, Words& out) : from_(from), made_(out.made.emplace_back()) {}
  /// Appends `text`, which stands for byte `at` of the other word and those after it.
  void append(std::string_view text, size_t at) {
    made_.text += text;
    if (from_.origins != nullptr) made_.origins.resize(made_.text.size(), from_.origins[at]);
  }
  /// Appends bytes [begin, end) of the other word.
  void copy(size_t begin, size_t end) {
    made_.text += from_.text.substr(begin, end - begin);
    if (from_.origins != nullptr) made_.origins.insert(made_.origins.end(), from_.origins + begin, from_.origins + end);
  }
  Word word() const { return {made_.text, from_.at_start, from_.origins == nullptr ? nullptr : made_.origins.data()}; }

 private:
  Word from_;
  Words::Made& made_;
};

/// Returns the word in the byte alphabet.
Word spelled(const Word& word, Words& out) {
  WordMaker made(word, out);
  if (word.origins == nullptr) {
    made.append(to_byte_alphabet(word.text), 0);
  } else {
    for (size_t at = 0; at < word.text.size(); ++at) made.append(to_byte_alphabet(word.text.substr(at, 1)), at);
  }
  return made.word();
}

/// Returns the bytes that a word in the byte alphabet spells.
Word unspelled(const Word& word, Words& out) {
  WordMaker made(word, out);
  if (word.origins == nullptr || !is_byte_alphabet(word.text)) {
    made.append(from_byte_alphabet(word.text), 0);
    return made.word();
  }
  for (size_t at = 0; at < word.text.size();) {
    const size_t length = first_code_point(word.text.substr(at)).length;
    made.append(from_byte_alphabet(word.text.substr(at, length)), at);
    at += length;
  }
  return made.word();
}

/// Returns the word with `mark` for each space, and before it if `prepends` is true and it does not begin with one.
Word marked(const Word& word, const std::string& mark, bool prepends, Words& out) {
  WordMaker made(word, out);
  if (prepends && word.text[0] != ' ' && !word.text.starts_with(mark)) made.append(mark, 0);
  size_t at = 0;
  for (size_t found; (found = word.text.find(' ', at)) != std::string_view::npos; at = found + 1) {
    made.copy(at, found);
    made.append(mark, found);
  }
  made.copy(at, word.text.size());
  return made.word();
}

auto scan(const WordScanner& scanner) {
  return [scanner](const Word& word, Words& out) {
    for (size_t at = 0; at < word.text.size();) {
      const size_t length = scanner.first_word(word.text.substr(at));
      out.list.push_back(word.part(at, at + length));
      at += length;
    }
  };
}

uint32_t character_of(const json& section, const char* key) {
  const auto text = section.at(key).get<std::string>();
  require(!text.empty() && first_code_point(text).length == text.size(), "tokenizer", "the ", key, " of a ",
          type_of(section), " must be one character: got ", section[key].dump());
  return first_code_point(text).value;
}

}  // namespace

PreTokenizer::PreTokenizer(const json& section, Spelling spelling, bool spelled)
    : byte_level_(spelled), bytes_wanted_(spelling == Spelling::Bytes) {
  if (!section.is_null()) add(section);
  if (bytes_wanted_ && byte_level_ && ends_in_alphabet_) {
    steps_.pop_back();
    if (!spelled) find_scanner(section);
  }
}

void PreTokenizer::add(const json& section) {
  const std::string type = type_of(section);
  if (type == "Sequence") {
    for (const json& step : section.at("pretokenizers")) add(step);
    return;
  }
  ends_in_alphabet_ = false;
  if (type == "ByteLevel") {
    add_byte_level(section);
  } else if (type == "Metaspace") {
    add_metaspace(section);
  } else if (type == "Split") {
    const auto regex = pattern_text(section, "Regex");
    const Behavior behavior = behavior_of(section);
    const bool invert = value_or(section, "invert", false);
    const bool plain = behavior == Behavior::Isolated || (behavior == Behavior::Removed && invert);
    const auto known = regex && plain
                           ? WordScanner::of(*regex, Dialect::Oniguruma)
                           : std::nullopt;  // the scanner's patterns match every character, so there is no text between
                                            // matches
    steps_.push_back(known ? Step(scan(*known)) : Step(split(pattern_of(section), behavior, invert)));
  } else if (type == "Whitespace") {
    steps_.push_back(split_words);
  } else if (type == "WhitespaceSplit") {
    steps_.push_back(split_by(is_space, Behavior::Removed));
  } else if (type == "BertPreTokenizer") {
    steps_.push_back(split_by(is_space, Behavior::Removed));
    steps_.push_back(split_by(is_punctuation, Behavior::Isolated));
  } else if (type == "Punctuation") {
    steps_.push_back(split_by(is_punctuation, behavior_of(section, "Isolated")));
  } else if (type == "Digits") {
    const bool single = value_or(section, "individual_digits", false);
    steps_.push_back(split_by(is_number, single ? Behavior::Isolated : Behavior::Contiguous));
  } else if (type == "CharDelimiterSplit") {
    const uint32_t delimiter = character_of(section, "delimiter");
    steps_.push_back(split_by([delimiter](uint32_t c) { return c == delimiter; }, Behavior::Removed));
  } else if (type == "FixedLength") {
    steps_.push_back(split_lengths(value_or<int64_t>(section, "length", 5)));
  } else {
    throw Error("tokenizer",
                concat("the pre_tokenizer ", type,
                       " is not supported, only Sequence, ByteLevel, Split, Metaspace, Whitespace, WhitespaceSplit, "
                       "BertPreTokenizer, Punctuation, Digits, CharDelimiterSplit, FixedLength"));
  }
}

void PreTokenizer::add_byte_level(const json& section) {
  // If the text is already spelled in the alphabet, spelling it again gives other words than the bytes of the text.
  if (byte_level_) bytes_wanted_ = false;
  byte_level_ = true;
  if (adds_prefix_space(section)) {
    steps_.push_back([](const Word& word, Words& out) {
      if (word.text[0] == ' ') return out.list.push_back(word);
      WordMaker made(word, out);
      made.append(" ", 0);
      made.copy(0, word.text.size());
      out.list.push_back(made.word());
    });
  }
  if (value_or(section, "use_regex", true)) steps_.push_back(scan(WordScanner::gpt2()));
  steps_.push_back([](const Word& word, Words& out) { out.list.push_back(spelled(word, out)); });
  ends_in_alphabet_ = true;
}

void PreTokenizer::add_metaspace(const json& section) {
  if (byte_level_) bytes_wanted_ = false;
  const auto mark = value_or<std::string>(section, "replacement", kMetaspace);
  require(!mark.empty() && first_code_point(mark).length == mark.size(), "tokenizer",
          "the replacement of a Metaspace must be one character: got ", mark);
  const std::string scheme = prepend_scheme_of(section);
  require(scheme == "always" || scheme == "first" || scheme == "never", "tokenizer", "the prepend_scheme ", scheme,
          " is not supported, only always, first, never");
  steps_.push_back([=](const Word& word, Words& out) {
    const bool prepends = scheme == "always" || (scheme == "first" && word.at_start);
    out.list.push_back(marked(word, mark, prepends, out));
  });
  const uint32_t character = first_code_point(mark).value;
  if (value_or(section, "split", true))
    steps_.push_back(split_by([character](uint32_t c) { return c == character; }, Behavior::MergedWithNext));
}

/// Uses the scanner alone if it is the only step, so that no lists of words are needed.
void PreTokenizer::find_scanner(const json& section) {
  const bool sequence = type_of(section) == "Sequence";
  const json& list = section.value("pretokenizers", json());
  if (steps_.size() != 1 || !bytes_wanted_) return;
  if (!sequence || list.size() == 1) {
    scanner_ = WordScanner::gpt2();  // without a prefix space, which would be a second step
    const json& one = sequence ? list[0] : section;
    if (!value_or(one, "use_regex", true)) scanner_ = std::nullopt;
  } else if (list.size() == 2 && type_of(list[0]) == "Split" && !value_or(list[1], "use_regex", true)) {
    const auto regex = pattern_text(list[0], "Regex");
    const Behavior behavior = behavior_of(list[0]);
    const bool plain =
        behavior == Behavior::Isolated || (behavior == Behavior::Removed && value_or(list[0], "invert", false));
    if (plain && regex) scanner_ = WordScanner::of(*regex, Dialect::Oniguruma);
  }
}

void PreTokenizer::operator()(std::string_view text, bool at_start, Words& words, const size_t* origins) const {
  words.list.clear();
  words.made.clear();
  if (!text.empty()) words.list.push_back({text, at_start, origins});
  std::vector<Word> before;
  for (const Step& step : steps_) {
    before.swap(words.list);
    words.list.clear();
    for (const Word& word : before) step(word, words);
  }
  if (bytes_wanted_ && byte_level_ && !ends_in_alphabet_)
    for (Word& word : words.list) word = unspelled(word, words);
}

}  // namespace colossal::text
