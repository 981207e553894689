#include "colossal/text/tokenizers/gguf_vocabulary.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <unordered_map>
#include <utility>

#include "colossal/base/base64.h"
#include "colossal/base/error.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/gguf_words.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/written_sections.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

using nlohmann::json;
using Sections = TokenizerSections<json>;

constexpr size_t kMaxPieceBytes = 1024;  // bounds the cost: every split of a piece is looked up

enum TokenType { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

constexpr char kKeyPrefix[] = "tokenizer.ggml.";

class Reader {
 public:
  explicit Reader(const formats::GgufFile& file) : file_(file), tokens_(file.texts(key("tokens"))) {
    check(tokens_.size() < size_t{1} << 30, "too many tokens");
    types_ =
        file.has(key("token_type")) ? file.integers(key("token_type")) : std::vector<int64_t>(tokens_.size(), kNormal);
    check(types_.size() == tokens_.size(), "token_type must be as long as tokens");
    std::set<std::string_view> seen;
    for (const std::string& token : tokens_)
      check(token.empty() || seen.insert(token).second, "the token ", printable(token), " occurs twice");
  }

  TokenizerFiles files() const {
    const std::string model = file_.text(key("model"));
    Sections sections;
    if (model == "gpt2") {
      sections = byte_level();
    } else if (model == "llama") {
      sections = sentence_piece();
    } else if (model == "bert") {
      sections = word_piece();
    } else if (model == "t5") {
      sections = unigram();
    } else {
      check(false, "model must be gpt2, llama, bert or t5: got ", printable(model));
    }
    sections.added_tokens = added_tokens();
    return {std::move(sections).to_json(), config()};
  }

 private:
  static std::string key(const std::string& name) { return kKeyPrefix + name; }
  template <class... Parts>
  void check(bool ok, const Parts&... parts) const {
    require(ok, "gguf", file_.path(), ": ", kKeyPrefix, parts...);
  }

  /// Returns the token id under the key `name`; -1 = the file has no such key.
  int64_t id(const std::string& name) const {
    const int64_t id = file_.integer(key(name), -1);
    check(!file_.has(key(name)) || (id >= 0 && id < static_cast<int64_t>(tokens_.size())), name,
          " must be the id of a token: got ", id);
    return id;
  }
  int64_t first_id(const char* name, const char* otherwise) const { return id(name) >= 0 ? id(name) : id(otherwise); }

  json vocabulary() const {
    json ids = json::object();
    for (size_t i = 0; i < tokens_.size(); ++i)
      if (!tokens_[i].empty()) ids[tokens_[i]] = i;
    return ids;
  }

  json added_tokens() const {
    json added = json::array();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const bool is_special = types_[i] == kControl || types_[i] == kUnknown;
      if (tokens_[i].empty() || (!is_special && types_[i] != kUserDefined)) continue;
      added.push_back({{"id", i}, {"content", tokens_[i]}, {"special", is_special}, {"normalized", false}});
    }
    return added;
  }

  /// Returns the post_processor that adds the begin and end tokens that the file asks for; null = it adds none.
  /// `begin` and `end` are ids; -1 = none. If the file does not say, `adds_begin` and `adds_end` decide: llama.cpp's
  /// defaults for the kind of vocabulary.
  json around(int64_t begin, int64_t end, bool adds_begin, bool adds_end) const {
    if (begin < 0 || file_.integer(key("add_bos_token"), adds_begin) == 0) begin = -1;
    if (end < 0 || file_.integer(key("add_eos_token"), adds_end) == 0) end = -1;
    if (begin < 0 && end < 0) return nullptr;
    json single = json::array(), pair = json::array(), special = json::object();
    const auto put = [&](json& list, int64_t token, int type) {
      if (token < 0) return;
      list.push_back(template_token(tokens_[token], type));
      special[tokens_[token]] = {{"id", tokens_[token]}, {"ids", {token}}, {"tokens", {tokens_[token]}}};
    };
    put(single, begin, 0), single.push_back(template_text("A", 0)), put(single, end, 0);
    put(pair, begin, 0), pair.push_back(template_text("A", 0)), put(pair, end, 0);
    put(pair, begin, 1), pair.push_back(template_text("B", 1)), put(pair, end, 1);
    return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", special}};
  }

  Sections byte_level() const {
    // The key `pre` is required, because without it llama.cpp uses a pattern that belongs to no vocabulary. That
    // pattern splits GPT-NeoX's words wrongly.
    check(file_.has(key("pre")), "pre is missing, so the pre-tokenizer is unknown; name a tokenizer with --tokenizer");
    const GgufWords& words = gguf_words(file_.text(key("pre")), file_.path());
    return {.model = {{"type", "BPE"},
                      {"vocab", vocabulary()},
                      {"merges", file_.texts(key("merges"))},
                      {"ignore_merges", words.ignores_merges}},
            .normalizer = Sections::left_out(),
            .pre_tokenizer = pre_tokenizer_of(words),
            .post_processor = around(id("bos_token_id"), id("eos_token_id"), words.adds_begin, false),
            .decoder = {{"type", "ByteLevel"}}};
  }

  std::vector<double> scores() const {
    const std::vector<double>& scores = file_.reals(key("scores"));
    check(scores.size() == tokens_.size(), "scores must be as long as tokens");
    for (const double score : scores) check(std::isfinite(score), "scores must be finite");
    return scores;
  }

  bool has_all_bytes() const { return std::count(types_.begin(), types_.end(), kByte) == 256; }

  /// Returns SentencePiece's joins as BPE merges: each split of a piece into two other pieces, best score first.
  json merges() const {
    const std::vector<double> scores = this->scores();
    std::unordered_map<std::string_view, int64_t> ids;
    for (size_t i = 0; i < tokens_.size(); ++i) ids.emplace(tokens_[i], static_cast<int64_t>(i));
    std::vector<size_t> order(tokens_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return scores[a] > scores[b]; });
    json merges = json::array();
    for (const size_t i : order) {
      const std::string_view piece = tokens_[i];
      if (types_[i] != kNormal && types_[i] != kUserDefined && types_[i] != kUnused) continue;
      check(piece.size() <= kMaxPieceBytes, "tokens must have at most ", kMaxPieceBytes, " bytes: got ", piece.size());
      for (size_t cut = first_character(piece).length; cut < piece.size();
           cut += first_character(piece.substr(cut)).length)
        if (ids.count(piece.substr(0, cut)) && ids.count(piece.substr(cut)))
          merges.push_back({piece.substr(0, cut), piece.substr(cut)});
    }
    return merges;
  }

  Sections sentence_piece() const {
    const bool prefix = file_.integer(key("add_space_prefix"), 1) != 0;
    const int64_t unknown = std::max<int64_t>(0, id("unknown_token_id"));
    check(!tokens_.empty(), "tokens must not be empty");
    json normalizers = json::array();
    if (prefix) normalizers.push_back({{"type", "Prepend"}, {"prepend", kMetaspace}});
    normalizers.push_back(replace_section("String", " ", kMetaspace));
    return {.model = {{"type", "BPE"},
                      {"vocab", vocabulary()},
                      {"merges", merges()},
                      {"unk_token", tokens_[unknown]},
                      {"fuse_unk", true},
                      {"byte_fallback", has_all_bytes()}},
            .normalizer = {{"type", "Sequence"}, {"normalizers", normalizers}},
            .pre_tokenizer = Sections::left_out(),
            .post_processor = around(id("bos_token_id"), id("eos_token_id"), true, false),
            .decoder = pieces_decoder(prefix)};
  }

  /// Returns the WordPiece tokenizer. It respells the tokens, because the file marks those that start a word and
  /// tokenizer.json those that continue one ("##").
  Sections word_piece() const {
    json ids = json::object();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& token = tokens_[i];
      const bool is_name = token.size() > 1 && token.front() == '[' && token.back() == ']';
      const bool starts = token.rfind(kMetaspace, 0) == 0;
      std::string spelled = is_name  ? token
                            : starts ? token.substr(std::char_traits<char>::length(kMetaspace))
                                     : "##" + token;
      if (!token.empty()) ids[std::move(spelled)] = i;
    }
    const int64_t unknown = id("unknown_token_id");
    check(unknown >= 0, "unknown_token_id is missing");
    return {.model = {{"type", "WordPiece"}, {"vocab", ids}, {"unk_token", tokens_[unknown]}},
            .normalizer = {{"type", "BertNormalizer"}, {"lowercase", true}},
            .pre_tokenizer = {{"type", "BertPreTokenizer"}},
            .post_processor = around(first_id("cls_token_id", "bos_token_id"),
                                     first_id("seperator_token_id", "eos_token_id"), true, true),
            .decoder = {{"type", "WordPiece"}}};
  }

  Sections unigram() const {
    json vocabulary = json::array();
    const std::vector<double> scores = this->scores();
    for (size_t i = 0; i < tokens_.size(); ++i) {
      check(!tokens_[i].empty(), "tokens of a t5 must not be empty");
      vocabulary.push_back({tokens_[i], scores[i]});
    }
    json normalizer;
    if (file_.has(key("precompiled_charsmap"))) {
      std::string bytes;
      for (const int64_t byte : file_.integers(key("precompiled_charsmap"))) bytes += static_cast<char>(byte);
      normalizer = {{"type", "Precompiled"}, {"precompiled_charsmap", base64(bytes)}};
    }
    const bool prefix = file_.integer(key("add_space_prefix"), 1) != 0;
    const json space = metaspace_section(prefix ? "always" : "never", true);
    json cut = space;
    if (file_.integer(key("remove_extra_whitespaces"), 0) != 0)
      cut = {{"type", "Sequence"}, {"pretokenizers", {{{"type", "WhitespaceSplit"}}, space}}};
    const int64_t unknown = id("unknown_token_id");
    return {.model = {{"type", "Unigram"},
                      {"vocab", vocabulary},
                      {"unk_id", unknown >= 0 ? json(unknown) : json()},
                      {"byte_fallback", has_all_bytes()}},
            .normalizer = normalizer,
            .pre_tokenizer = cut,
            .post_processor = around(id("bos_token_id"), id("eos_token_id"), false, true),
            .decoder = space};
  }

  json config() const {
    json config = json::object();
    const auto name = [&](const char* as, int64_t token) { config[as] = token < 0 ? json() : json(tokens_[token]); };
    name("bos_token", id("bos_token_id"));
    name("eos_token", first_id("eos_token_id", "seperator_token_id"));
    name("mask_token", id("mask_token_id"));
    name("unk_token", id("unknown_token_id"));
    name("pad_token", id("padding_token_id"));
    if (file_.has("tokenizer.chat_template")) config["chat_template"] = file_.text("tokenizer.chat_template");
    return config;
  }

  const formats::GgufFile& file_;
  const std::vector<std::string>& tokens_;
  std::vector<int64_t> types_;
};

}  // namespace

TokenizerFiles tokenizer_of_gguf(const formats::GgufFile& file) { return Reader(file).files(); }

std::unique_ptr<Tokenizer> read_gguf_tokenizer(const std::string& path, Scope scope) {
  const formats::GgufFile file(path);
  TokenizerFiles files = tokenizer_of_gguf(file);
  if (scope == Scope::Part) files.tokenizer = for_parts(std::move(files.tokenizer));
  return make_hugging_face_tokenizer(files.tokenizer, files.config, path);
}

}  // namespace colossal::text
