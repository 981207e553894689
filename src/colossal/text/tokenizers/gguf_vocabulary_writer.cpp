#include <algorithm>
#include <filesystem>
#include <map>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_file.h"
#include "colossal/text/end_tokens.h"
#include "colossal/text/tokenizers/byte.h"
#include "colossal/text/tokenizers/byte_alphabet.h"
#include "colossal/text/tokenizers/gguf_vocabulary.h"
#include "colossal/text/tokenizers/gguf_words.h"
#include "colossal/text/tokenizers/json_model.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/normalizer.h"
#include "colossal/text/tokenizers/sentence_piece_model.h"
#include "colossal/text/tokenizers/tokenizer_class.h"
#include "colossal/text/tokenizers/tokenizer_files.h"

namespace colossal::text {
namespace {

using nlohmann::json;
using ValueKind = formats::GgufValue::Kind;
namespace fs = std::filesystem;

constexpr char kTokens[] = "tokenizer.ggml.tokens", kTypes[] = "tokenizer.ggml.token_type",
               kScores[] = "tokenizer.ggml.scores", kModel[] = "tokenizer.ggml.model", kPre[] = "tokenizer.ggml.pre";

enum WrittenType { kPlain = 1, kIsUnknown = 2, kIsControl = 3, kIsUserDefined = 4, kIsUnused = 5, kIsByte = 6 };

struct Row {
  std::string text;
  int64_t type = kIsUnused;
  double score = 0;
};

void put_rows(const std::vector<Row>& rows, bool with_scores, formats::GgufValues& values) {
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<double> scores;
  for (const Row& row : rows) {
    tokens.push_back(row.text);
    types.push_back(row.type);
    scores.push_back(row.score);
  }
  values[kTokens] = formats::GgufValue::list(std::move(tokens));
  values[kTypes] = formats::GgufValue::list(ValueKind::I32, std::move(types));
  if (with_scores) values[kScores] = formats::GgufValue::list(std::move(scores));
}

/// Names tokens without a text and adds tokens up to `vocabulary`, because a file has one token for each row of the
/// model's embedding.
void fill(formats::GgufValues& values, int64_t vocabulary) {
  std::vector<std::string>& tokens = values[kTokens].texts;
  require(static_cast<int64_t>(tokens.size()) <= vocabulary, "gguf", "the tokenizer has ", tokens.size(),
          " tokens, more than the model, ", vocabulary, "; name the tokenizer that the model was trained with");
  tokens.resize(static_cast<size_t>(vocabulary));
  values[kTypes].integers.resize(tokens.size(), kIsUnused);
  if (values.count(kScores)) values[kScores].reals.resize(tokens.size(), -10000);
  for (size_t i = 0; i < tokens.size(); ++i)
    if (tokens[i].empty()) tokens[i] = concat("[PAD", i, "]");
}

formats::GgufValues of_bytes() {
  std::vector<Row> rows;
  for (int byte = 0; byte < 256; ++byte)
    rows.push_back({to_byte_alphabet(std::string(1, static_cast<char>(byte))), kPlain});
  rows.push_back({ByteTokenizer::kEndSpelling, kIsControl});
  formats::GgufValues values{{kModel, formats::GgufValue::text("gpt2")},
                             {kPre, formats::GgufValue::text("gpt-2")},
                             {"tokenizer.ggml.merges", formats::GgufValue::list(std::vector<std::string>{})}};
  put_rows(rows, false, values);
  return values;
}

/// Returns the tokens of a tokenizer.json: its model's tokens and the added tokens.
std::vector<Row> rows_of(const json& tokenizer) {
  std::vector<Row> rows;
  const auto put = [&](const std::string& text, int64_t id, int64_t type) {
    require(id >= 0 && id < int64_t{1} << 28, "gguf", "the id of ", printable(text), " is out of range: ", id);
    if (id >= static_cast<int64_t>(rows.size())) rows.resize(static_cast<size_t>(id) + 1);
    rows[static_cast<size_t>(id)] = {text, type};
  };
  const json& model = tokenizer.at("model");
  for (const auto& [text, id] : model.at("vocab").items()) {
    const bool is_byte = text.size() == 6 && text.rfind("<0x", 0) == 0 && text.back() == '>';
    put(text, id.get<int64_t>(), is_byte && value_or(model, "byte_fallback", false) ? kIsByte : kPlain);
  }
  const auto unknown = value_or<std::string>(model, "unk_token", "");
  for (const json& added : value_or(tokenizer, "added_tokens", json::array())) {
    const auto text = content_of(added);
    const json& known = model["vocab"].value(text, added.at("id"));
    put(text, known.get<int64_t>(),
        text == unknown                     ? kIsUnknown
        : value_or(added, "special", false) ? kIsControl
                                            : kIsUserDefined);
  }
  return rows;
}

/// Returns the two tokens of a merge.
std::pair<std::string, std::string> merge_of(const json& merge) {
  if (merge.is_array()) return {merge.at(0).get<std::string>(), merge.at(1).get<std::string>()};
  const auto text = merge.get<std::string>();
  const size_t space = std::min(text.find(' '), text.size());
  return {text.substr(0, space), text.substr(std::min(space + 1, text.size()))};
}

/// Returns true for NFC, which llama.cpp's files leave out, and for no normalizer at all.
bool is_composition(const json& normalizer) { return normalizer.is_null() || type_of(normalizer) == "NFC"; }

formats::GgufValues of_byte_level(const json& tokenizer, const GgufWords& words) {
  formats::GgufValues values{{kModel, formats::GgufValue::text("gpt2")},
                             {kPre, formats::GgufValue::text(words.names.front())}};
  std::vector<std::string> merges;
  for (const json& merge : tokenizer.at("model").at("merges")) {
    const auto [left, right] = merge_of(merge);
    merges.push_back(left + " " + right);
  }
  values["tokenizer.ggml.merges"] = formats::GgufValue::list(std::move(merges));
  put_rows(rows_of(tokenizer), false, values);
  return values;
}

/// Returns whether a LLaMA tokenizer.json, old or new, puts a space before a text; no value if it is another tokenizer.
std::optional<bool> space_in_front(const json& tokenizer) {
  const json cut = tokenizer.value("pre_tokenizer", json()), normalizer = tokenizer.value("normalizer", json());
  if (!cut.is_null()) {
    if (type_of(cut) != "Metaspace" || value_or(cut, "split", true) || !normalizer.is_null()) return {};
    return value_or<std::string>(cut, "prepend_scheme", "always") != "never";
  }
  bool prepends = false, replaces = false;
  if (normalizer.is_null()) return {};
  const json steps = type_of(normalizer) == "Sequence" ? normalizer.at("normalizers") : json::array({normalizer});
  for (const json& step : steps) {
    if (type_of(step) == "Prepend" && value_or<std::string>(step, "prepend", "") == kMetaspace) {
      prepends = true;
    } else if (type_of(step) == "Replace" && step.at("pattern") == json{{"String", " "}}) {
      replaces = true;
    } else {
      return {};
    }
  }
  return replaces ? std::optional(prepends) : std::nullopt;
}

/// Assigns scores in the order of the merges: the first merge has the best score.
formats::GgufValues of_pieces(const json& tokenizer, bool space) {
  std::map<std::string, double> scores;
  double score = 0;
  for (const json& merge : tokenizer.at("model").at("merges")) {
    const auto [left, right] = merge_of(merge);
    if (scores.emplace(left + right, score).second) --score;
  }
  std::vector<Row> rows = rows_of(tokenizer);
  for (Row& row : rows) {
    const auto found = scores.find(row.text);
    if (row.type == kPlain) row.score = found == scores.end() ? score : found->second;
  }
  formats::GgufValues values{{kModel, formats::GgufValue::text("llama")},
                             {kPre, formats::GgufValue::text("default")},
                             {"tokenizer.ggml.add_space_prefix", formats::GgufValue::flag(space)}};
  put_rows(rows, true, values);
  return values;
}

formats::GgufValues of_tokenizer_json(const json& tokenizer, const std::string& source) {
  const json& model = tokenizer.at("model");
  require(std::string(model_type(model)) == "BPE", "gguf", source, ": a ", model_type(model),
          " cannot be written, only BPE and SentencePiece");
  const json normalizer = tokenizer.value("normalizer", json());
  const GgufWords* words =
      gguf_words_of(tokenizer.value("pre_tokenizer", json()), value_or(model, "ignore_merges", false));
  if (words && is_composition(normalizer)) return of_byte_level(tokenizer, *words);
  const std::optional<bool> space = space_in_front(tokenizer);
  require(!words && space.has_value(), "gguf", source,
          ": llama.cpp has no name for the pre-tokenizer of this tokenizer; it would read other tokens");
  return of_pieces(tokenizer, *space);
}

formats::GgufValues of_sentence_piece(const std::string& path) {
  using Its = SentencePieceFile;
  const Its file = Its::parse(read_file(path, kMaxTokenizerBytes));
  require(file.kind == Its::Kind::Bpe || file.kind == Its::Kind::Unigram, "gguf", path,
          ": word and character models cannot be written");
  const bool is_bpe = file.kind == Its::Kind::Bpe;
  std::vector<Row> rows;
  for (const Its::Piece& piece : file.pieces)
    rows.push_back({piece.text, static_cast<int64_t>(piece.type), piece.score});
  formats::GgufValues values{
      {kModel, formats::GgufValue::text(is_bpe ? "llama" : "t5")},
      {kPre, formats::GgufValue::text("default")},
      {"tokenizer.ggml.add_space_prefix", formats::GgufValue::flag(file.add_dummy_prefix)},
      {"tokenizer.ggml.remove_extra_whitespaces", formats::GgufValue::flag(file.remove_extra_whitespaces)}};
  require(!is_bpe || (file.charsmap.empty() && !file.remove_extra_whitespaces), "gguf", path,
          ": GGUF files cannot store its normalizer; llama.cpp would read other tokens");
  std::vector<int64_t> charsmap;
  for (const char byte : file.charsmap) charsmap.push_back(static_cast<unsigned char>(byte));
  if (!charsmap.empty())
    values["tokenizer.ggml.precompiled_charsmap"] = formats::GgufValue::list(ValueKind::U8, std::move(charsmap));
  put_rows(rows, true, values);
  for (size_t i = 0; i < rows.size(); ++i)
    if (rows[i].type == kIsUnknown)
      values["tokenizer.ggml.unknown_token_id"] = formats::GgufValue::integer(static_cast<int64_t>(i));
  return values;
}

json read_if_there(const fs::path& path) {
  return fs::exists(path) ? read_json_object(path.string(), "gguf", {.bytes = kMaxTokenizerBytes}) : json::object();
}

/// Chooses the file as make_tokenizer() does.
formats::GgufValues of_files(const std::string& source, const json& config) {
  const fs::path path(source), folder = fs::is_directory(path) ? path : path.parent_path();
  const auto is_or_has = [&](const char* name) {
    return fs::is_directory(path) ? fs::exists(path / name) : path.filename() == name;
  };
  if (is_or_has("tokenizer.json"))
    return of_tokenizer_json(read_tokenizer_json((folder / "tokenizer.json").string(), config), source);
  for (const char* name : {"tokenizer.model", "spiece.model"})
    if (is_or_has(name)) return of_sentence_piece((folder / name).string());
  if (is_or_has("vocab.json") && fs::exists(folder / "merges.txt"))
    return of_tokenizer_json(from_vocabulary_and_merges(folder.string(), config), source);
  throw Error("gguf", concat(source, ": this kind of tokenizer cannot be written; use one of tokenizer.json, ",
                             "tokenizer.model, spiece.model, or vocab.json with merges.txt"));
}

/// Returns the chat template that tokenizer_config.json or chat_template.json has; of a list the default one.
std::string template_in(const json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end()) return "";
  if (found->is_string()) return found->get<std::string>();
  for (const json& one : found->is_array() ? *found : json::array())
    if (value_or<std::string>(one, "name", "") == "default") return value_or<std::string>(one, "template", "");
  return "";
}

/// Returns the chat template of a tokenizer's folder; empty = it has none. ChatTemplate::read() has the same order.
std::string template_of(const fs::path& folder, const json& config) {
  const fs::path beside = folder / "chat_template.jinja";
  if (fs::exists(beside)) return read_file(beside.string(), 1 << 20);
  const std::string text = template_in(config);
  return text.empty() ? template_in(read_if_there(folder / "chat_template.json")) : text;
}

/// Adds the tokens that surround a text, those that end one, and the chat template.
void put_around(const std::string& source, const json& config, formats::GgufValues& values) {
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(source);
  const std::vector<int64_t> before = tokenizer->encode_prompt(""), whole = tokenizer->encode_whole("").ids;
  const auto put = [&](const std::string& name, int64_t id) {
    if (id >= 0) values[concat("tokenizer.ggml.", name)] = formats::GgufValue::integer(id);
  };
  const int64_t begin = before.empty() ? tokenizer->begin_id() : before.front();
  put("bos_token_id", begin);
  put("eos_token_id", tokenizer->end_id());
  require(before.size() <= 1 && whole.size() <= before.size() + 1, "gguf", source,
          ": adds more than one token before or after a text, which GGUF files cannot store");
  values["tokenizer.ggml.add_bos_token"] = formats::GgufValue::flag(before.size() == 1);
  values["tokenizer.ggml.add_eos_token"] = formats::GgufValue::flag(whole.size() == before.size() + 1);
  if (source == "bytes") return;
  const fs::path folder = fs::is_directory(source) ? fs::path(source) : fs::path(source).parent_path();
  std::vector<int64_t> ends = end_ids(folder.string(), *tokenizer);
  std::erase_if(ends, [&](int64_t id) { return id >= tokenizer->vocabulary_size(); });
  add_end_ids(ends, values);
  if (std::string text = template_of(folder, config); !text.empty())
    values["tokenizer.chat_template"] = formats::GgufValue::text(std::move(text));
}

}  // namespace

void add_end_ids(const std::vector<int64_t>& ids, formats::GgufValues& values) {
  for (const int64_t id : ids)
    for (const char* name : {"eos", "eot", "eom"}) {
      const auto wanted = formats::GgufValue::integer(id);
      const auto [place, is_new] = values.try_emplace(concat("tokenizer.ggml.", name, "_token_id"), wanted);
      if (is_new || place->second.integers == wanted.integers) break;
    }
}

formats::GgufValues gguf_of_tokenizer(const std::string& source, int64_t vocabulary) {
  formats::GgufValues values;
  if (formats::is_gguf(source)) {
    const formats::GgufFile file(source);
    for (const auto& [key, value] : file.values())
      if (key.rfind("tokenizer.", 0) == 0) values[key] = value;
    require(values.count(kTokens) > 0, "gguf", source, ": has no vocabulary");
    fill(values, vocabulary);
    return values;
  }
  try {
    const fs::path folder = fs::is_directory(source) ? fs::path(source) : fs::path(source).parent_path();
    const json config = source == "bytes" ? json::object() : read_if_there(folder / "tokenizer_config.json");
    values = source == "bytes" ? of_bytes() : of_files(source, config);
    put_around(source, config, values);
  } catch (const json::exception& error) {
    throw Error("gguf", concat(source, ": not a tokenizer: ", error.what()));
  }
  fill(values, vocabulary);
  return values;
}

}  // namespace colossal::text
