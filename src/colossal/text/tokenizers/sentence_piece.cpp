#include <filesystem>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/sentence_piece_model.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/vocabulary.h"
#include "colossal/text/unicode.h"

namespace colossal::text {
namespace {

using Type = SentencePieceFile::Type;
namespace fs = std::filesystem;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
const std::string_view kSpaceMark = kMetaspace;

struct Around {
  bool begin = true, end = false;
};

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(SentencePieceFile file, Around around)
      : file_(std::move(file)), around_(around), charsmap_(file_.charsmap), model_(file_) {
    file_.charsmap.clear();
    const auto control = [&](const std::string& piece) {
      const int32_t id = model_.id_of(piece);
      return file_.pieces[id].type == Type::Control ? id : -1;
    };
    begin_id_ = control(file_.begin);
    end_id_ = control(file_.end);
    for (const char* mask : {"[MASK]", "<mask>"})
      if (mask_id_ < 0 && model_.id_of(mask) != model_.unknown_id()) mask_id_ = model_.id_of(mask);
  }

  std::vector<int64_t> encode(std::string_view text) const override {
    std::vector<int64_t> ids;
    encode(normalized(text, nullptr), [&](int64_t id, size_t /*begin*/) { ids.push_back(id); });
    return ids;
  }

  PlacedTokens encode_placed(std::string_view text) const override {
    PlacedTokens placed;
    std::vector<size_t> origins;
    encode(normalized(text, &origins), [&](int64_t id, size_t begin) {
      placed.ids.push_back(id);
      placed.begins.push_back(origins[begin]);
    });
    return placed;
  }

  std::vector<int64_t> encode_prompt(std::string_view text) const override {
    std::vector<int64_t> ids = encode(text);
    if (around_.begin && begin_id_ >= 0) ids.insert(ids.begin(), begin_id_);
    return ids;
  }

  Encoding encode_whole(std::string_view text) const override {
    Encoding whole{encode_prompt(text), {}};
    if (around_.end && end_id_ >= 0) whole.ids.push_back(end_id_);
    whole.types.assign(whole.ids.size(), 0);
    return whole;
  }

  std::string piece(int64_t id) const override {
    const SentencePieceFile::Piece& piece = checked(id);
    if (piece.type == Type::Control) return "";
    if (piece.type == Type::Unknown) return file_.unknown_surface;
    if (piece.type == Type::Byte)
      return std::string(1, static_cast<char>(std::stoi(piece.text.substr(3, 2), nullptr, 16)));
    return replaced(piece.text, kMetaspace, " ");
  }

  std::string spelling(int64_t id) const override { return checked(id).text; }

  std::string decode(const std::vector<int64_t>& ids, bool with_special) const override {
    std::string text;
    bool at_front = true;  // true while the text is empty: a space mark there was added by encoding and is dropped
    for (const int64_t id : ids) {
      const Type type = checked(id).type;
      const bool is_text = type != Type::Control && type != Type::Unknown && type != Type::Byte;
      const bool strips = is_text && at_front && (file_.add_dummy_prefix || file_.remove_extra_whitespaces) &&
                          file_.pieces[id].text.rfind(kSpaceMark, 0) == 0;
      if (strips) {
        text += replaced(file_.pieces[id].text.substr(kSpaceMark.size()), kMetaspace, " ");
      } else {
        text += type == Type::Control && with_special ? file_.pieces[id].text : piece(id);
      }
      // If the normalizer removes spaces, all leading spaces are dropped.
      at_front = at_front && text.empty() && !(strips && !file_.remove_extra_whitespaces);
    }
    return text;
  }

  int64_t vocabulary_size() const override { return static_cast<int64_t>(file_.pieces.size()); }
  int64_t begin_id() const override { return begin_id_; }
  int64_t end_id() const override { return end_id_; }
  int64_t mask_id() const override { return mask_id_; }

 private:
  const SentencePieceFile::Piece& checked(int64_t id) const {
    require(id >= 0 && id < vocabulary_size(), "tokenizer", "token ids must be in [0, ", vocabulary_size(), "): got ",
            id);
    return file_.pieces[id];
  }

  /// Calls found(id, begin) for each token. `begin` is its first byte in `normalized`.
  template <class Found>
  void encode(const std::string& normalized, const Found& found) const {
    bool unknown_before = false;  // consecutive unknown parts become one token
    for (const SentencePieceModel::Part& part : model_.cut(normalized)) {
      const bool unknown = part.id == model_.unknown_id();
      auto begin = static_cast<size_t>(part.text.data() - normalized.data());
      if (unknown && file_.byte_fallback) {
        for (const char c : part.text) found(byte_id(c), begin++);
      } else if (!unknown || !unknown_before) {
        found(part.id, begin);
      }
      unknown_before = unknown;
    }
  }

  int32_t byte_id(char byte) const { return model_.id_of(byte_token(static_cast<unsigned char>(byte))); }

  /// Returns the replacement of the front of `text`, and how many bytes it replaces.
  Charsmap::Rule first_rule(std::string_view text) const {
    if (const size_t own = model_.user_defined(text)) return {own, text.substr(0, own)};
    if (const auto rule = charsmap_.longest(text)) return *rule;
    const Utf8Character first = first_character(text);
    if (first.kind != Utf8::Complete) return {1, kReplacement};  // one byte at a time
    return {first.length, text.substr(0, first.length)};
  }

  /// Returns the normalized text. If `origins` is not null, it gets the byte of `text` from which each byte was made.
  std::string normalized(const std::string_view whole, std::vector<size_t>* origins) const {
    std::string_view text = whole;
    const bool removes = file_.remove_extra_whitespaces;
    const std::string_view space = file_.escape_whitespaces ? kSpaceMark : " ";
    while (removes && !text.empty()) {
      const Charsmap::Rule rule = first_rule(text);
      if (rule.value != " ") break;
      text.remove_prefix(rule.length);
    }
    if (text.empty()) return "";
    std::string out;
    const auto made_from = [&](size_t at) {
      if (origins != nullptr) origins->resize(out.size(), at);
    };
    if (file_.add_dummy_prefix && !file_.spaces_behind) out += space;
    made_from(whole.size() - text.size());
    bool after_space = removes;
    while (!text.empty()) {
      const Charsmap::Rule rule = first_rule(text);
      std::string_view value = rule.value;
      while (after_space && !value.empty() && value[0] == ' ') value.remove_prefix(1);
      for (const char c : value) c == ' ' ? out.append(space) : out.append(1, c);
      made_from(whole.size() - text.size());
      if (!value.empty()) after_space = removes && value.back() == ' ';
      text.remove_prefix(rule.length);
    }
    while (removes && out.size() >= space.size() && std::string_view(out).substr(out.size() - space.size()) == space)
      out.resize(out.size() - space.size());
    if (file_.add_dummy_prefix && file_.spaces_behind) out += space;
    made_from(whole.size());
    return out;
  }

  SentencePieceFile file_;
  Around around_;
  Charsmap charsmap_;
  SentencePieceModel model_;
  int64_t begin_id_ = -1, end_id_ = -1, mask_id_ = -1;
};

}  // namespace

std::unique_ptr<Tokenizer> read_sentence_piece(const std::string& path, Scope scope) {
  const std::string beside = (fs::path(path).parent_path() / "tokenizer_config.json").string();
  try {
    Around around;
    if (fs::exists(beside)) {
      const nlohmann::json config = read_json_object(beside, "tokenizer", {.bytes = int64_t{64} << 20});
      around.begin = value_or(config, "add_bos_token", true);
      around.end = value_or(config, "add_eos_token", false) ||
                   value_or<std::string>(config, "tokenizer_class", "").starts_with("T5Tokenizer");
    }
    SentencePieceFile file = SentencePieceFile::parse(read_file(path, kMaxTokenizerBytes));
    if (scope == Scope::Part) file.add_dummy_prefix = file.remove_extra_whitespaces = false;
    return std::make_unique<SentencePieceTokenizer>(std::move(file), around);
  } catch (const nlohmann::json::exception& error) {
    throw Error("tokenizer", concat(beside, ": not a tokenizer's config: ", error.what()));
  } catch (const Error& error) {
    throw Error("tokenizer", concat(path, ": ", error.message()));
  }
}

}  // namespace colossal::text
