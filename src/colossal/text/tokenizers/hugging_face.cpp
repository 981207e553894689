#include <algorithm>
#include <filesystem>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/added_tokens.h"
#include "colossal/text/tokenizers/clip_sections.h"
#include "colossal/text/tokenizers/decoder.h"
#include "colossal/text/tokenizers/json_model.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/letters.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/post_processor.h"
#include "colossal/text/tokenizers/pre_tokenizer.h"
#include "colossal/text/tokenizers/tokenizer_class.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/word_cache.h"

namespace colossal::text {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

json read_json(const std::string& path) { return read_json_object(path, "tokenizer", {.bytes = kMaxTokenizerBytes}); }

/// The contents of a tokenizer.json and of the files next to it, read and checked.
struct Description {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::unique_ptr<WordModel> model;
  Vocabulary added;                    ///< ids of added tokens
  std::set<std::string> special;       ///< contents of tokens that decode() shows only on demand
  AddedTokens in_text, in_normalized;  ///< added tokens, searched in the raw text and in normalized text
  PostProcessor post_processor;
  Decoder decoder;
  int64_t begin_id = -1, end_id = -1, mask_id = -1;
};

struct Added {
  Vocabulary ids;
  std::set<std::string> special;
  std::vector<AddedToken> in_text, in_normalized;
};

Added parse_added(const json& list, const WordModel& model, const Normalizer& normalizer) {
  Added added{Vocabulary(model.vocabulary().ids().size() + list.size()), {}, {}, {}};
  for (const json& row : list) {
    const std::string content = content_of(row);
    require(!content.empty(), "tokenizer", "an added token must have content: ", row.dump());
    const json& id = row.at("id");
    require(id.is_number_integer(), "tokenizer",
            "the id of an added token must be a whole number: ", printable(row.dump()));
    // As in the package, a token that the model has keeps the model's id.
    const int32_t known = model.vocabulary().id_of(content);
    added.ids.add(content, known >= 0 ? known : id.get<int64_t>());
    AddedToken token{.content = content,
                     .id = added.ids.id_of(content),
                     .is_special = value_or(row, "special", false),
                     .strips_left = value_or(row, "lstrip", false),
                     .strips_right = value_or(row, "rstrip", false),
                     .is_single_word = value_or(row, "single_word", false)};
    token.is_normalized = value_or(row, "normalized", !token.is_special);
    if (token.is_special) added.special.insert(content);
    if (token.is_normalized) token.content = normalizer(token.content).text;
    (token.is_normalized ? added.in_normalized : added.in_text).push_back(std::move(token));
  }
  return added;
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(Description description) : d_(std::move(description)) {
    size_ = std::max(d_.model->vocabulary().size(), d_.added.size());
    for (int64_t id = 0; id < size_; ++id) {
      const std::string& token = token_of(id);
      const bool shown = !token.empty() && !d_.special.count(token);
      pieces_.push_back(shown ? d_.decoder({token}, true) : "");
    }
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    const CachePool::Lease cache = caches_.lease();
    PlacedTokens out;
    encode(text, {*cache, out, false});
    return std::move(out.ids);
  }

  PlacedTokens encode_placed(std::string_view text) const override {
    const CachePool::Lease cache = caches_.lease();
    PlacedTokens out;
    encode(text, {*cache, out, true});
    return out;
  }

  std::vector<int64_t> encode_prompt(std::string_view text) const override {
    std::vector<int64_t> ids = d_.post_processor.before();
    const std::vector<int64_t> rest = encode(text);
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }

  Encoding encode_whole(std::string_view text) const override { return d_.post_processor(encode(text)); }
  Encoding encode_pair(std::string_view first, std::string_view second) const override {
    return d_.post_processor(encode(first), encode(second));
  }

  std::string piece(int64_t id) const override {
    check(id);
    return pieces_[id];
  }

  std::string spelling(int64_t id) const override {
    check(id);
    return token_of(id);
  }

  std::string decode(const std::vector<int64_t>& ids, bool with_special) const override {
    std::vector<std::string> tokens;
    for (const int64_t id : ids) {
      check(id);
      const std::string& token = token_of(id);
      if (!token.empty() && (with_special || !d_.special.count(token))) tokens.push_back(token);
    }
    return d_.decoder(std::move(tokens));
  }

  int64_t vocabulary_size() const override { return size_; }
  int64_t begin_id() const override { return d_.begin_id; }
  int64_t end_id() const override { return d_.end_id; }
  int64_t mask_id() const override { return d_.mask_id; }

 private:
  void check(int64_t id) const {
    require(id >= 0 && id < size_, "tokenizer", "token ids must be in [0, ", size_, "): got ", id);
  }

  const std::string& token_of(int64_t id) const {
    const std::string& added = d_.added.token(id);
    return added.empty() ? d_.model->vocabulary().token(id) : added;
  }

  /// The cache and the output of one encoding. If `places` is true, the output gets the begins of the tokens.
  struct Encoder {
    WordCache& cache;
    PlacedTokens& out;
    bool places;
    Words words{};
  };

  void encode(std::string_view text, Encoder encoder) const {
    std::vector<size_t> origins;  // origins of the bytes of a piece
    for (const AddedTokens::Piece& piece : d_.in_text.cut(text)) {
      const auto begin = static_cast<size_t>(piece.text.data() - text.data());
      if (piece.id >= 0) {
        encoder.out.ids.push_back(piece.id);
        if (encoder.places) encoder.out.begins.push_back(begin);
        continue;
      }
      const bool first = begin == 0;
      if (d_.normalizer.empty()) {
        origins.resize(encoder.places ? piece.text.size() : 0);
        std::iota(origins.begin(), origins.end(), begin);
        encode_normalized(piece.text, first, origins, encoder);
      } else {
        Normalizer::Result result = d_.normalizer(std::string(piece.text), encoder.places);
        for (size_t& origin : result.origins) origin += begin;
        encode_normalized(result.text, first && result.keeps_front, result.origins, encoder);
      }
    }
  }

  /// Appends the ids of a word, and the places where they begin if `origins`, those of its bytes, is not null.
  void encode_word(std::string_view word, const size_t* origins, Encoder& encoder) const {
    std::vector<int64_t>& ids = encoder.out.ids;
    const size_t before = ids.size();
    if (!encoder.cache.find(word, ids)) {
      d_.model->encode(word, ids);
      encoder.cache.keep(word, ids.data() + before, ids.size() - before);
    }
    if (origins == nullptr) return;
    for (const size_t place : d_.model->places(word, ids.data() + before, ids.size() - before))
      encoder.out.begins.push_back(origins[std::min(place, word.size() - 1)]);
  }

  void encode_normalized(std::string_view text, bool at_start, const std::vector<size_t>& origins,
                         Encoder& encoder) const {
    for (const AddedTokens::Piece& piece : d_.in_normalized.cut(text)) {
      const size_t* from = encoder.places ? origins.data() + (piece.text.data() - text.data()) : nullptr;
      if (piece.id >= 0) {
        encoder.out.ids.push_back(piece.id);
        if (from != nullptr) encoder.out.begins.push_back(*from);
      } else if (const auto& scanner = d_.pre_tokenizer.scanner()) {
        for (size_t at = 0; at < piece.text.size();) {
          const size_t length = scanner->first_word(piece.text.substr(at));
          encode_word(piece.text.substr(at, length), from == nullptr ? nullptr : from + at, encoder);
          at += length;
        }
      } else {
        d_.pre_tokenizer(piece.text, at_start && piece.text.data() == text.data(), encoder.words, from);
        for (const Word& word : encoder.words.list) encode_word(word.text, word.origins, encoder);
      }
    }
  }

  Description d_;
  int64_t size_;
  std::vector<std::string> pieces_;  // token texts in order of id
  mutable CachePool caches_;
};

/// Returns the id of the token under `key` of tokenizer_config.json; if the key is absent, of the first name in
/// `known`.
int64_t named_token(const json& config, const char* key, const Description& d, const std::vector<std::string>& known) {
  std::vector<std::string> names;
  if (const json named = config.value(key, json()); named.is_object()) names.push_back(named.value("content", ""));
  if (config.contains(key) && config[key].is_string()) names.push_back(config[key]);
  if (!config.contains(key)) names = known;
  for (const std::string& name : names) {
    const int64_t id = d.added.id_of(name);
    if (id >= 0) return id;
    if (d.model->vocabulary().id_of(name) >= 0) return d.model->vocabulary().id_of(name);
  }
  return -1;
}

Description describe(const json& tokenizer, const json& config) {
  const auto section = [&](const char* key) { return tokenizer.value(key, json()); };
  const json& model = tokenizer.at("model");
  const bool is_bpe = std::string_view(model_type(model)) == "BPE";
  Normalizer normalizer(section("normalizer"));
  PreTokenizer pre_tokenizer(section("pre_tokenizer"), is_bpe ? Spelling::Bytes : Spelling::Alphabet,
                             normalizer.is_byte_level());
  std::unique_ptr<WordModel> parsed = parse_model(model, pre_tokenizer.makes_bytes());
  Added added = parse_added(value_or(tokenizer, "added_tokens", json::array()), *parsed, normalizer);
  Description d{std::move(normalizer),
                std::move(pre_tokenizer),
                std::move(parsed),
                std::move(added.ids),
                std::move(added.special),
                AddedTokens(std::move(added.in_text)),
                AddedTokens(std::move(added.in_normalized)),
                PostProcessor(section("post_processor")),
                Decoder(section("decoder"))};
  const std::vector<int64_t> before = d.post_processor.before();
  d.begin_id = before.empty() ? named_token(config, "bos_token", d, {"<s>", "<|begin_of_text|>", "<|endoftext|>"})
                              : before.front();
  d.end_id = named_token(config, "eos_token", d, {"</s>", "<|end_of_text|>", "<|endoftext|>", "[SEP]"});
  d.mask_id = named_token(config, "mask_token", d, {"[MASK]", "<mask>"});
  return d;
}

/// Returns the file from which the tokenizer is read.
std::string source_of(const std::string& path) {
  if (!fs::is_directory(path)) return path;
  const fs::path folder(path);
  if (!fs::exists(folder / "tokenizer.json")) {
    if (fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt")) return (folder / "vocab.json").string();
    if (fs::exists(folder / "vocab.txt")) return (folder / "vocab.txt").string();
  }
  return (folder / "tokenizer.json").string();
}

}  // namespace

json for_parts(json tokenizer) {
  const std::function<void(json&)> change = [&](json& section) {
    if (!section.is_object()) return;
    const std::string type = type_of(section);
    if (type == "Prepend") section = {{"type", "Sequence"}, {"normalizers", json::array()}};
    if (type == "Strip") section["strip_left"] = section["strip_right"] = false;
    if (type == "Metaspace") section["prepend_scheme"] = "never";
    if (type == "ByteLevel") section["add_prefix_space"] = false;
    if (type != "Sequence") return;
    for (const char* list : {"normalizers", "pretokenizers"})
      if (section.contains(list))
        for (json& one : section[list]) change(one);
  };
  for (const char* section : {"normalizer", "pre_tokenizer"})
    if (tokenizer.contains(section)) change(tokenizer[section]);
  return tokenizer;
}

json read_tokenizer_config(const std::string& folder) {
  const fs::path file = fs::path(folder) / "tokenizer_config.json", map = fs::path(folder) / "special_tokens_map.json";
  json config = fs::exists(file) ? read_json(file.string()) : json::object();
  if (is_clip(config) && !config.contains("added_tokens_decoder") && fs::exists(map))
    config.update(read_json(map.string()));
  return config;
}

std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::string& path, Scope scope) {
  const fs::path file = source_of(path);
  try {
    const json config = read_tokenizer_config(file.parent_path().string());
    if (file.extension() == ".txt" && is_letter_vocabulary(file.string(), config))
      return read_letter_vocabulary(file.string(), config);
    json tokenizer = file.filename() == "vocab.json" ? from_vocabulary_and_merges(file.parent_path().string(), config)
                     : file.extension() == ".txt"    ? from_vocabulary_text(file.string(), config)
                                                     : read_tokenizer_json(file.string(), config);
    if (scope == Scope::Part) tokenizer = for_parts(std::move(tokenizer));
    return make_hugging_face_tokenizer(tokenizer, config, file.string());
  } catch (const json::exception& error) {
    throw Error("tokenizer", concat(file.string(), ": not a tokenizer: ", error.what()));
  }
}

std::unique_ptr<Tokenizer> make_hugging_face_tokenizer(const json& tokenizer, const json& config,
                                                       const std::string& name) {
  try {
    return std::make_unique<HuggingFaceTokenizer>(describe(tokenizer, config));
  } catch (const json::exception& error) {
    throw Error("tokenizer", concat(name, ": not a tokenizer: ", error.what()));
  }
}

}  // namespace colossal::text
