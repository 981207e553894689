#include "colossal/text/hugging_face_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/text/added_tokens.h"
#include "colossal/text/bpe.h"
#include "colossal/text/byte_alphabet.h"
#include "colossal/text/pre_tokenizer.h"

namespace colossal::text {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

constexpr int64_t kMaxBytes = int64_t{256} << 20;
constexpr int64_t kMaxId = 1 << 24;

json read_json(const std::string& path) { return read_json_object(path, "tokenizer", {.bytes = kMaxBytes}); }

int32_t id_of(const json& id, const std::string& token) {
  require(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMaxId, "tokenizer", "the id of ",
          token, " must be in [0, 2^24): got ", id.dump());
  return id.get<int32_t>();
}

/// Everything that a tokenizer.json and its neighbours say, read and checked.
struct Description {
  Bpe bpe;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  AddedTokens added;
  std::vector<int64_t> before;  ///< special tokens that the template puts before a text
  bool strips_space = false;    ///< decoding drops the one space that encoding put in front
  int64_t begin_id = -1, end_id = -1, mask_id = -1;
};

std::vector<std::pair<std::string, std::string>> parse_merges(const json& list) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (const json& merge : list) {
    if (merge.is_array() && merge.size() == 2) {
      merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.get<std::string>();
    const size_t space = text.find(' ');
    require(space != std::string::npos, "tokenizer", "a merge must name two tokens: got ", text);
    merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return merges;
}

Bpe parse_model(const json& model) {
  require(model.value("type", "BPE") == "BPE", "tokenizer", "the model must be a BPE: got ", model.at("type").dump());
  const auto absent = [&](const char* key) { return !model.contains(key) || model[key].is_null() || model[key] == ""; };
  require(absent("continuing_subword_prefix") && absent("end_of_word_suffix"), "tokenizer",
          "continuing_subword_prefix and end_of_word_suffix are not understood");
  Bpe::Vocabulary vocabulary;
  for (const auto& [token, id] : model.at("vocab").items()) vocabulary[token] = id_of(id, token);
  Bpe::Options options{.byte_fallback = model.value("byte_fallback", false),
                       .ignore_merges = model.value("ignore_merges", false)};
  options.fuse_unknown = model.value("fuse_unk", false);
  if (!absent("unk_token")) {
    const auto unknown = vocabulary.find(model["unk_token"].get<std::string>());
    require(unknown != vocabulary.end(), "tokenizer", "unk_token is not in the vocabulary");
    options.unknown = unknown->second;
  }
  return Bpe(std::move(vocabulary), parse_merges(model.at("merges")), options);
}

AddedTokens parse_added(const json& list) {
  std::vector<AddedToken> tokens;
  for (const json& row : list) {
    const std::string content = row.at("content");
    require(!content.empty() && !row.value("single_word", false), "tokenizer",
            "an added token must have content and not ask for single_word: ", row.dump());
    tokens.push_back({content, id_of(row.at("id"), content), row.value("special", false), row.value("lstrip", false),
                      row.value("rstrip", false)});
  }
  return AddedTokens(std::move(tokens));
}

/// The special tokens before the text in a post_processor's template.
std::vector<int64_t> parse_template(const json& section) {
  if (section.is_null() || section.at("type") == "ByteLevel") return {};
  std::vector<int64_t> before;
  if (section["type"] == "Sequence") {
    for (const json& step : section.at("processors")) {
      const std::vector<int64_t> more = parse_template(step);
      before.insert(before.end(), more.begin(), more.end());
    }
    return before;
  }
  require(section["type"] == "TemplateProcessing", "tokenizer", "the post_processor ", section["type"].dump(),
          " is not understood, only TemplateProcessing, ByteLevel, Sequence");
  for (const json& item : section.at("single")) {
    if (!item.contains("SpecialToken")) break;
    const std::string name = item["SpecialToken"].at("id");
    for (const json& id : section.at("special_tokens").at(name).at("ids")) before.push_back(id_of(id, name));
  }
  return before;
}

/// Whether some decoder step removes a leading space.
bool strips_space(const json& decoder) {
  if (decoder.is_null()) return false;
  const std::string type = decoder.at("type");
  if (type == "Sequence") {
    const json& steps = decoder.at("decoders");
    return std::any_of(steps.begin(), steps.end(), strips_space);
  }
  if (type == "Strip") return decoder.value("start", 0) > 0;
  return type == "Metaspace" && decoder.value("prepend_scheme", "always") != "never" &&
         decoder.value("add_prefix_space", true);
}

class HuggingFaceTokenizer final : public Tokenizer {
 public:
  explicit HuggingFaceTokenizer(Description description) : d_(std::move(description)) {
    for (const auto& [token, id] : d_.bpe.vocabulary()) set_piece(id, piece_of(token));
    for (const AddedToken& token : d_.added.tokens()) set_piece(token.id, token.is_special ? "" : token.content);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    bool first = true;
    for (const AddedTokens::Piece& piece : d_.added.cut(text)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        for (const std::string& word : d_.pre_tokenizer(d_.normalizer(std::string(piece.text)), first))
          d_.bpe.encode(word, ids);
      }
      first = false;
    }
    return ids;
  }

  std::vector<int64_t> encode_prompt(std::string_view text) const override {
    std::vector<int64_t> ids = d_.before;
    const std::vector<int64_t> rest = encode(text);
    ids.insert(ids.end(), rest.begin(), rest.end());
    return ids;
  }

  std::string piece(int64_t id) const override {
    require(id >= 0 && id < vocabulary_size(), "tokenizer", "token ids are in [0, ", vocabulary_size(), "): got ", id);
    return pieces_[id];
  }

  std::string decode(const std::vector<int64_t>& ids) const override {
    const std::string text = Tokenizer::decode(ids);
    return d_.strips_space && !text.empty() && text[0] == ' ' ? text.substr(1) : text;
  }

  int64_t vocabulary_size() const override { return static_cast<int64_t>(pieces_.size()); }
  int64_t begin_id() const override { return d_.begin_id; }
  int64_t end_id() const override { return d_.end_id; }
  int64_t mask_id() const override { return d_.mask_id; }

 private:
  void set_piece(int32_t id, std::string bytes) {
    if (pieces_.size() <= static_cast<size_t>(id)) pieces_.resize(id + 1);
    pieces_[id] = std::move(bytes);
  }

  std::string piece_of(const std::string& token) const {
    if (d_.pre_tokenizer.is_byte_level()) return from_byte_alphabet(token);
    if (token.size() == 6 && token.rfind("<0x", 0) == 0 && token[5] == '>')
      return std::string(1, static_cast<char>(std::strtol(token.substr(3, 2).c_str(), nullptr, 16)));
    return replaced(token, kMetaspace, " ");
  }

  Description d_;
  std::vector<std::string> pieces_;  // by id
};

/// The id of tokenizer_config.json's `key`, else of the first known name.
int64_t named_token(const json& config, const char* key, const Description& d, const std::vector<std::string>& known) {
  std::vector<std::string> names;
  if (const json named = config.value(key, json()); named.is_object()) names.push_back(named.value("content", ""));
  if (config.contains(key) && config[key].is_string()) names.push_back(config[key]);
  if (!config.contains(key)) names = known;
  for (const std::string& name : names) {
    const int64_t id = d.added.id_of(name);
    if (id >= 0) return id;
    const auto found = d.bpe.vocabulary().find(name);
    if (found != d.bpe.vocabulary().end()) return found->second;
  }
  return -1;
}

/// What GPT-2's vocab.json and merges.txt would be as a tokenizer.json.
json from_vocabulary_and_merges(const fs::path& folder) {
  json merges = json::array();
  std::istringstream lines(read_file((folder / "merges.txt").string(), kMaxBytes));
  for (std::string line; std::getline(lines, line);)
    if (!line.empty() && line.rfind("#version", 0) != 0) merges.push_back(line);
  const json vocabulary = read_json((folder / "vocab.json").string());
  json added = json::array();
  if (vocabulary.contains("<|endoftext|>"))
    added.push_back({{"content", "<|endoftext|>"}, {"id", vocabulary["<|endoftext|>"]}, {"special", true}});
  return {{"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", merges}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
          {"added_tokens", added}};
}

Description describe(const json& tokenizer, const json& config) {
  const auto section = [&](const char* key) { return tokenizer.value(key, json()); };
  Description d{parse_model(tokenizer.at("model")),        Normalizer(section("normalizer")),
                PreTokenizer(section("pre_tokenizer")),    parse_added(tokenizer.value("added_tokens", json::array())),
                parse_template(section("post_processor")), strips_space(section("decoder"))};
  d.begin_id = d.before.empty() ? named_token(config, "bos_token", d, {"<s>", "<|begin_of_text|>", "<|endoftext|>"})
                                : d.before.front();
  d.end_id = named_token(config, "eos_token", d, {"</s>", "<|end_of_text|>", "<|endoftext|>"});
  d.mask_id = named_token(config, "mask_token", d, {"[MASK]", "<mask>"});
  return d;
}

}  // namespace

std::unique_ptr<Tokenizer> read_hugging_face_tokenizer(const std::string& path) {
  const fs::path folder = fs::is_directory(path) ? fs::path(path) : fs::path(path).parent_path();
  const std::string file = fs::is_directory(path) ? (folder / "tokenizer.json").string() : path;
  const std::string config = (folder / "tokenizer_config.json").string();
  const bool plain = !fs::exists(file) && fs::exists(folder / "vocab.json") && fs::exists(folder / "merges.txt");
  try {
    const json tokenizer = plain ? from_vocabulary_and_merges(folder) : read_json(file);
    return std::make_unique<HuggingFaceTokenizer>(
        describe(tokenizer, fs::exists(config) ? read_json(config) : json::object()));
  } catch (const json::exception& error) {
    throw Error("tokenizer", concat(file, ": not a tokenizer: ", error.what()));
  }
}

}  // namespace colossal::text
