#include <algorithm>
#include <charconv>
#include <filesystem>
#include <map>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/added_tokens.h"
#include "colossal/text/tokenizers/bpe.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/word_cache.h"
#include "colossal/text/tokenizers/word_scanner.h"

namespace colossal::text {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kLlama3Ranks = 128000;
constexpr size_t kMaxTokenBytes = 1024;  // bytes; the longest token of o200k_base has 128. The limit bounds the cost:
                                         // every split is looked up

/// The properties of an encoding that a rank file does not contain.
struct EncodingRules {
  std::string pattern;
  std::map<std::string, int64_t> special;
  std::string begin, end;
};

EncodingRules llama3() {
  EncodingRules rules{kLlama3Words, {}, "<|begin_of_text|>", "<|end_of_text|>"};
  const std::vector<std::string> named = {"<|begin_of_text|>",
                                          "<|end_of_text|>",
                                          "<|reserved_special_token_0|>",
                                          "<|reserved_special_token_1|>",
                                          "<|reserved_special_token_2|>",
                                          "<|reserved_special_token_3|>",
                                          "<|start_header_id|>",
                                          "<|end_header_id|>",
                                          "<|reserved_special_token_4|>",
                                          "<|eot_id|>"};
  int64_t id = kLlama3Ranks;
  for (const std::string& name : named) rules.special[name] = id++;
  for (int i = 5; id < kLlama3Ranks + 256; ++i) rules.special[concat("<|reserved_special_token_", i, "|>")] = id++;
  return rules;
}

std::optional<EncodingRules> known_rules(const std::string& name) {
  const std::string end = "<|endoftext|>";
  if (name == "gpt2" || name == "r50k_base") return EncodingRules{kR50kWords, {{end, 50256}}, "", end};
  if (name == "p50k_base") return EncodingRules{kR50kWords, {{end, 50256}}, "", end};
  if (name == "cl100k_base")
    return EncodingRules{kCl100kWords,
                         {{end, 100257},
                          {"<|fim_prefix|>", 100258},
                          {"<|fim_middle|>", 100259},
                          {"<|fim_suffix|>", 100260},
                          {"<|endofprompt|>", 100276}},
                         "",
                         end};
  if (name == "o200k_base") return EncodingRules{kO200kWords, {{end, 199999}, {"<|endofprompt|>", 200018}}, "", end};
  if (name == "llama3") return llama3();
  return std::nullopt;
}

EncodingRules rules_of(const fs::path& path, int64_t ranks) {
  if (auto known = known_rules(path.stem().string())) return *known;
  if (ranks == kLlama3Ranks && path.filename() == "tokenizer.model") return llama3();
  const std::string beside = (path.parent_path() / "encoding.json").string();
  require(fs::exists(beside), "tokenizer", path.string(), " is a file of ranks without a pattern: name it gpt2, ",
          "r50k_base, p50k_base, cl100k_base, o200k_base or llama3, or add an encoding.json with pattern and ",
          "special_tokens to its folder");
  const nlohmann::json json = read_json_object(beside, "tokenizer", {.bytes = 1 << 20});
  try {
    EncodingRules rules{json.at("pattern").get<std::string>(), {}, "", "<|endoftext|>"};
    const auto special = value_or(json, "special_tokens", nlohmann::json::object());
    for (const auto& [token, id] : special.items()) rules.special[token] = id.get<int64_t>();
    return rules;
  } catch (const nlohmann::json::exception& error) {
    throw Error("tokenizer", concat(beside, ": ", error.what()));
  }
}

/// Calls row(token, rank, line) for each line.
template <class Row>
void for_rows(std::string_view bytes, const Row& row) {
  for (int64_t line = 1; !bytes.empty(); ++line) {
    const size_t end = std::min(bytes.find('\n'), bytes.size());
    std::string_view text = bytes.substr(0, end);
    bytes.remove_prefix(std::min(end + 1, bytes.size()));
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (text.empty()) continue;
    const size_t space = text.find(' ');
    int64_t rank = -1;
    const char* last = text.data() + text.size();
    const bool ok = space != std::string_view::npos && space > 0 &&
                    std::from_chars(text.data() + space + 1, last, rank).ptr == last && rank >= 0;
    require(ok, "tokenizer", "line ", line, " must be a token in base64, a space and its rank: got ",
            printable(std::string(text)));
    row(text.substr(0, space), rank, line);
  }
}

Vocabulary parse_ranks(std::string_view bytes) {
  Vocabulary vocabulary(static_cast<size_t>(std::count(bytes.begin(), bytes.end(), '\n')));
  for_rows(bytes, [&](std::string_view base64, int64_t rank, int64_t line) {
    const std::string token = from_base64(base64);
    require(!token.empty() && vocabulary.id_of(token) < 0 && vocabulary.token(rank).empty(), "tokenizer", "line ", line,
            ": a token or a rank is empty or occurs twice: rank ", rank);
    require(token.size() <= kMaxTokenBytes, "tokenizer", "line ", line, ": a token must be of at most ", kMaxTokenBytes,
            " bytes: got ", token.size());
    vocabulary.add(token, rank);
  });
  return vocabulary;
}

class TiktokenTokenizer final : public Tokenizer {
 public:
  TiktokenTokenizer(Vocabulary ranks, const EncodingRules& rules)
      : bpe_(Bpe::of_ranks(std::move(ranks))),
        special_(rules.special.size() + bpe_.vocabulary().ids().size()),
        in_text_(add_special(rules)),
        scanner_(WordScanner::of(rules.pattern, Dialect::Rust)) {
    if (!scanner_) regex_.emplace(rules.pattern, Dialect::Rust);
    size_ = std::max(bpe_.vocabulary().size(), special_.size());
    begin_id_ = special_.id_of(rules.begin);
    end_id_ = special_.id_of(rules.end);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    encode(text, ids, [](std::string_view) {});
    return ids;
  }

  PlacedTokens encode_placed(std::string_view text) const override {
    PlacedTokens placed;
    encode(text, placed.ids, [&](std::string_view word) {  // the bytes of a word's tokens are the word
      auto begin = static_cast<size_t>(word.data() - text.data());
      for (size_t i = placed.begins.size(); i < placed.ids.size(); ++i) {
        placed.begins.push_back(begin);
        begin += bpe_.vocabulary().token(placed.ids[i]).size();
      }
    });
    return placed;
  }

  std::vector<int64_t> encode_prompt(std::string_view text) const override {
    std::vector<int64_t> ids = encode(text);
    if (begin_id_ >= 0) ids.insert(ids.begin(), begin_id_);
    return ids;
  }

  Encoding encode_whole(std::string_view text) const override {
    Encoding whole{encode_prompt(text), {}};
    whole.types.assign(whole.ids.size(), 0);
    return whole;
  }

  std::string piece(int64_t id) const override {
    check(id);
    return bpe_.vocabulary().token(id);
  }

  /// Returns the bytes in the byte alphabet, so that the spelling is valid text.
  std::string spelling(int64_t id) const override {
    check(id);
    const std::string& special = special_.token(id);
    return special.empty() ? to_byte_alphabet(bpe_.vocabulary().token(id)) : special;
  }

  int64_t vocabulary_size() const override { return size_; }
  int64_t begin_id() const override { return begin_id_; }
  int64_t end_id() const override { return end_id_; }

 private:
  void check(int64_t id) const {
    require(id >= 0 && id < size_, "tokenizer", "token ids must be in [0, ", size_, "): got ", id);
  }

  std::vector<AddedToken> add_special(const EncodingRules& rules) {
    std::vector<AddedToken> tokens;
    for (const auto& [content, id] : rules.special) {
      require(bpe_.vocabulary().token(id).empty(), "tokenizer", "the id of the special token ", printable(content),
              " is the rank of another: ", id);
      special_.add(content, id);
      tokens.push_back({.content = content, .id = static_cast<int32_t>(id), .is_special = true});
    }
    return tokens;
  }

  /// Appends the ids of a text, and calls done(word) after those of each word or special token.
  template <class Done>
  void encode(std::string_view text, std::vector<int64_t>& ids, const Done& done) const {
    const CachePool::Lease cache = caches_.lease();
    const auto word = [&](std::string_view word) {
      if (!cache->find(word, ids)) {
        const size_t before = ids.size();
        bpe_.encode(word, ids);
        cache->keep(word, ids.data() + before, ids.size() - before);
      }
      done(word);
    };
    for (const AddedTokens::Piece& piece : in_text_.cut(text)) {
      if (piece.id < 0) {
        cut(piece.text, word);
        continue;
      }
      ids.push_back(piece.id);
      done(piece.text);
    }
  }

  /// Text that the pattern does not match belongs to no word. As in tiktoken, it is dropped.
  template <class Word>
  void cut(std::string_view text, const Word& word) const {
    if (!scanner_) {
      for (const Regex::Match& match : regex_->find_all(text))
        if (match.end > match.begin) word(text.substr(match.begin, match.end - match.begin));
      return;
    }
    while (!text.empty()) {
      const size_t length = scanner_->first_word(text);
      word(text.substr(0, length));
      text.remove_prefix(length);
    }
  }

  Bpe bpe_;
  Vocabulary special_;
  AddedTokens in_text_;
  std::optional<WordScanner> scanner_;
  std::optional<Regex> regex_;
  int64_t size_, begin_id_, end_id_;
  mutable CachePool caches_;
};

}  // namespace

bool looks_like_tiktoken(std::string_view bytes) {
  const std::string_view line = bytes.substr(0, bytes.find('\n'));
  const size_t space = line.find(' ');
  const auto is = [](std::string_view text, std::string_view allowed) {
    return !text.empty() && text.find_first_not_of(allowed) == std::string_view::npos;
  };
  return space != std::string_view::npos && line.size() < 4096 &&
         is(line.substr(0, space), "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=") &&
         is(line.substr(space + 1), "0123456789\r");
}

std::unique_ptr<Tokenizer> read_tiktoken(const std::string& path) {
  try {
    Vocabulary ranks = parse_ranks(read_file(path, kMaxTokenizerBytes));
    const EncodingRules rules = rules_of(path, static_cast<int64_t>(ranks.ids().size()));
    return std::make_unique<TiktokenTokenizer>(std::move(ranks), rules);
  } catch (const Error& error) {
    throw Error("tokenizer", concat(path, ": ", error.message()));
  }
}

}  // namespace colossal::text
