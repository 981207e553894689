#include "colossal/text/tokenizers/tokenizer_class.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/base/json_file.h"
#include "colossal/text/tokenizers/clip_sections.h"
#include "colossal/text/tokenizers/json_section.h"
#include "colossal/text/tokenizers/tokenizer_files.h"
#include "colossal/text/tokenizers/written_sections.h"

namespace colossal::text {
namespace {

using nlohmann::json;
using Names = std::vector<std::string_view>;

/// The change that a class makes to a tokenizer.json.
enum class Change { None, Bert, ByteLevel, Clip, GptNeoX, Llama, Unknown };

struct TokenizerClass {
  std::string_view name;
  Change change;
  Names model_types;     ///< model types that use this class
  Names special_tokens;  ///< its special tokens, unless tokenizer_config.json names others
};

/// The table of classes. See: models/auto/tokenization_auto.py of transformers 5.23, and the classes that it names.
const std::vector<TokenizerClass>& classes() {
  static const Names bert{"[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"}, gpt2{"<|endoftext|>"},
      roberta{"<s>", "</s>", "<unk>", "<pad>", "<mask>"}, llama{"<unk>", "<s>", "</s>"};
  static const std::vector<TokenizerClass> rows{
      {"BertTokenizer",
       Change::Bert,
       {"align",   "bark",  "bert",       "blip",           "bros",     "chinese_clip",  "convbert",
        "electra", "ernie", "flava",      "grounding-dino", "layoutlm", "megatron-bert", "mm-grounding-dino",
        "nezha",   "git",   "tvp",        "nomic_bert",     "realm",    "squeezebert",   "visual_bert",
        "qdqbert", "vilt",  "distilbert", "retribert"},
       bert},
      {"DistilBertTokenizer", Change::Bert, {}, bert},
      {"ElectraTokenizer", Change::Bert, {}, bert},
      {"LayoutLMTokenizer", Change::Bert, {}, bert},
      {"LxmertTokenizer", Change::Bert, {"lxmert"}, bert},
      {"MobileBertTokenizer", Change::Bert, {"mobilebert"}, bert},
      {"SqueezeBertTokenizer", Change::Bert, {}, bert},
      {"GPT2Tokenizer",
       Change::ByteLevel,
       {"blip-2", "codegen", "dbrx", "emu3", "gpt2", "gpt_neo", "gptj", "hyperclovax_vision_v2", "instructblip",
        "instructblipvideo", "jais2", "opt", "phi", "starcoder2"},
       gpt2},
      {"CodeGenTokenizer", Change::ByteLevel, {}, gpt2},
      {"RobertaTokenizer",
       Change::ByteLevel,
       {"bart", "bridgetower", "clap", "data2vec-text", "ibert", "lilt", "longformer", "mega", "mra", "roberta",
        "roberta-prelayernorm"},
       roberta},
      {"BartTokenizer", Change::ByteLevel, {"florence2"}, roberta},
      {"LEDTokenizer", Change::ByteLevel, {"led"}, roberta},
      {"LongformerTokenizer", Change::ByteLevel, {}, roberta},
      {"MvpTokenizer", Change::ByteLevel, {"mvp"}, roberta},
      {"WhisperTokenizer", Change::ByteLevel, {"whisper"}, gpt2},
      {"CohereTokenizer", Change::ByteLevel, {"aya_vision", "cohere", "cohere2"}, {}},
      {"Qwen2Tokenizer",
       Change::ByteLevel,
       {"audioflamingo3", "colqwen2",       "cosmos3_omni", "dots3_note", "fun_asr_nano", "hunyuan_vl",
        "internvl",       "lighton_ocr",    "ovis2",        "qwen2_5_vl", "qianfan_ocr",  "moss_transcribe_diarize",
        "qwen2",          "qwen2_5_omni",   "qwen2_audio",  "qwen2_moe",  "qwen2_vl",     "qwen3",
        "qwen3_moe",      "qwen3_omni_moe", "qwen3_next",   "qwen3_asr",  "qwen3_vl",     "qwen3_vl_moe",
        "vibevoice"},
       gpt2},
      {"Qwen3_5Tokenizer",
       Change::ByteLevel,
       {"qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen4_exp"},
       gpt2},
      {"GPTNeoXTokenizer",
       Change::GptNeoX,
       {"falcon_mamba", "gpt_neox", "mamba", "mamba2", "mpt", "olmo", "olmoe", "rwkv", "xlstm"},
       {"<|endoftext|>", "<|padding|>"}},
      {"CLIPTokenizer",
       Change::Clip,
       {"aimv2", "clip", "clipseg", "groupvit", "omdet-turbo", "oneformer", "owlv2", "owlvit", "sam3", "sam3_video",
        "xclip"},
       {kClipBegin, kClipEnd}},
      {"LlamaTokenizer", Change::Llama, {"idefics", "idefics2"}, llama}};
  return rows;
}

/// Models whose tokenizer.json is used unchanged, whatever tokenizer_class says; a space before and after each name.
constexpr std::string_view kUnchangedModels =
    " EvollaModel arctic aria beam bigbird_pegasus camembertv2-base canary chatlm cohere_asr ernie4_5 ernie4_5_moe"
    " flex_olmo fuyu glm glm4 glm4_moe glm4_moe_lite glm4v glm4v_moe glm_image glmasr got_ocr2 gpt_bigcode"
    " gradium_phonon_tts granite granitemoe h2ovl_chat granitemoehybrid granitemoeshared hyperclovax internlm2"
    " internlm3 iquestcoder hyperclovax_vlm jamba kimi_k25 kimi_linear kosmos-2 llava llava_next mimo_v2_flash"
    " minicpm3 minicpm_ocr minicpmv minicpmv4_6 minicpmv4_7 minimax_m2 ministral ministral3 mistral mistral3"
    " mistral_large4 mixtral modernbert molmo molmo2 nemo_speechlm nemotron nvfp4 modernbert-decoder olmo2 olmo3"
    " olmo_hybrid nystromformer opencua openvla paddleocr_vl pegasus_x persimmon phi3 phi3_v phimoe pix2struct"
    " pixtral pocket_tts smolvlm stablelm step3_vl umt5 vipllava voxtral voxtral_realtime xlm-roberta-xl ";

/// Returns true for models of kUnchangedModels.
bool takes_files_as_they_are(std::string_view model_type) {
  return model_type.find(' ') == model_type.npos &&
         kUnchangedModels.find(concat(" ", model_type, " ")) != kUnchangedModels.npos;
}

/// Returns true for models that use the class of their type, whatever tokenizer_class says.
bool has_class_of_type(std::string_view model_type) {
  return model_type == "qwen2" || model_type == "qwen4_exp" || model_type == "hyperclovax_vision_v2" ||
         model_type.starts_with("qwen3_5");
}

const TokenizerClass& row_of(std::string_view name) {
  static const TokenizerClass as_it_is{"", Change::None, {}, {}}, unknown{"", Change::Unknown, {}, {}};
  for (const char* plain : {"", "TokenizersBackend", "PythonBackend", "PreTrainedTokenizer", "BloomTokenizer"})
    if (name == plain) return as_it_is;
  for (const TokenizerClass& row : classes())
    if (row.name == name) return row;
  return unknown;
}

bool has_byte_level(const json& tokenizer) {
  for (const char* section : {"pre_tokenizer", "decoder", "normalizer", "post_processor"})
    if (tokenizer.value(section, json()).dump().find("\"ByteLevel\"") != std::string::npos) return true;
  return false;
}

/// Returns the class that AutoTokenizer would use.
const TokenizerClass& class_of(const json& tokenizer, const json& config, const json& model) {
  auto name = value_or<std::string>(config, "tokenizer_class", value_or<std::string>(model, "tokenizer_class", ""));
  const auto type = value_or<std::string>(model, "model_type", "");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  if (takes_files_as_they_are(type) || (name == "LlamaTokenizer" && has_byte_level(tokenizer))) return row_of("");
  if (!name.empty() && !has_class_of_type(type)) return row_of(name);
  for (const TokenizerClass& row : classes())
    if (std::count(row.model_types.begin(), row.model_types.end(), type) > 0) return row;
  return row_of(name.empty() && !type.empty() ? "a class that is not known here" : name);
}

/// Returns a flag of tokenizer_config.json; no value if it is absent or null.
std::optional<bool> flag(const json& config, const char* key, const std::string& file) {
  const auto found = config.find(key);
  if (found == config.end() || found->is_null()) return std::nullopt;
  require(found->is_boolean(), "tokenizer", key, " in tokenizer_config.json next to ", file,
          " must be true or false: got ", printable(found->dump()));
  return found->get<bool>();
}

/// Calls `visit` for each section of a type within `section`, which may be a Sequence.
template <class Visit>
void for_sections(json& section, const char* type, Visit visit) {
  if (!section.is_object()) return;
  if (value_or<std::string>(section, "type", "") == type) visit(section);
  for (const char* parts : {"pretokenizers", "normalizers"})
    if (const auto list = section.find(parts); list != section.end() && list->is_array())
      for (json& part : *list) for_sections(part, type, visit);
}

/// The flags that a file implies if no key of tokenizer_config.json is applied; no value = it does not say.
struct FileFlags {
  bool prefix_space = false, lower_case = false;
  std::optional<bool> strip_accents, chinese_chars;
};

FileFlags flags_of_file(const json& tokenizer) {
  FileFlags flags;
  for (const char* key : {"pre_tokenizer", "normalizer"}) {
    json section = tokenizer.value(key, json());
    for_sections(section, "ByteLevel", [&](json& at) { flags.prefix_space |= adds_prefix_space(at); });
    for_sections(section, "Prepend", [&](json&) { flags.prefix_space = true; });
    for_sections(section, "Metaspace", [&](json& at) { flags.prefix_space |= prepend_scheme_of(at) != "never"; });
    for_sections(section, "Lowercase", [&](json&) { flags.lower_case = true; });
    for_sections(section, "StripAccents", [&](json&) { flags.strip_accents = true; });
    for_sections(section, "BertNormalizer", [&](json& at) {
      flags.lower_case |= value_or(at, "lowercase", true);
      flags.strip_accents = value_or(at, "strip_accents", flags.lower_case);
      flags.chinese_chars = value_or(at, "handle_chinese_chars", true);
    });
  }
  return flags;
}

class ClassReader {
 public:
  ClassReader(json tokenizer, const json& config, const json& model, const std::string& file)
      : tokenizer_(std::move(tokenizer)), config_(config), file_(file), class_(class_of(tokenizer_, config, model)) {}

  json read() {
    require(!flag("split_special_tokens").value_or(false), "tokenizer",
            "split_special_tokens in tokenizer_config.json next to ", file_,
            " must be false, because text that spells a special token is always that token; remove the key");
    change_sections();
    take_added_tokens();
    if (class_.change == Change::Clip) set_clip_sections(tokenizer_, config_, file_);
    return std::move(tokenizer_);
  }

 private:
  std::optional<bool> flag(const char* key) const { return text::flag(config_, key, file_); }

  void change_sections() {
    switch (class_.change) {
      case Change::None:
      case Change::Clip:  // set_clip_sections(), which needs all added tokens
        return;
      case Change::Bert:
        tokenizer_["normalizer"] = bert();
        return;
      case Change::GptNeoX:
        tokenizer_["post_processor"] = nullptr;
        return set_prefix_space();
      case Change::ByteLevel:
        return set_prefix_space();
      case Change::Llama:
        return cut_as_llama();
      case Change::Unknown:
        return refuse_contradictions();
    }
  }

  json bert() const {
    const std::optional<bool> strips = flag("strip_accents");
    return bert_normalizer(flag("do_lower_case").value_or(true), strips ? json(*strips) : json(),
                           flag("tokenize_chinese_chars").value_or(true));
  }

  void set_prefix_space() {
    const bool wanted = flag("add_prefix_space").value_or(false);
    bool found = false;
    for_sections(tokenizer_["pre_tokenizer"], "ByteLevel", [&](json& section) {
      section["add_prefix_space"] = wanted;
      found = true;
    });
    require(found || !wanted, "tokenizer", "add_prefix_space in tokenizer_config.json next to ", file_,
            " must be false, as the file has no ByteLevel pre_tokenizer: got true; remove the key");
  }

  /// Handles files whose vocabulary marks words with U+2581, old and new.
  void cut_as_llama() {
    const bool prefix = flag("add_prefix_space").value_or(true);
    tokenizer_["normalizer"] = nullptr;
    tokenizer_["pre_tokenizer"] = metaspace_section(!prefix                          ? "never"
                                                    : flag("legacy").value_or(false) ? "always"
                                                                                     : "first",
                                                    false);
    tokenizer_["decoder"] = pieces_decoder(prefix);
  }

  void refuse_contradictions() {
    const auto check = [&](const char* key, std::optional<bool> own) {
      const std::optional<bool> wanted = flag(key);
      require(!wanted || !own || *wanted == *own, "tokenizer", key, " in tokenizer_config.json must equal that of ",
              file_, ", because its tokenizer_class is unknown: got ", wanted.value_or(false) ? "true" : "false",
              "; change the file, or remove the key");
    };
    const FileFlags own = flags_of_file(tokenizer_);
    check("add_prefix_space", own.prefix_space);
    check("do_lower_case", own.lower_case);
    check("strip_accents", own.strip_accents);
    check("tokenize_chinese_chars", own.chinese_chars);
  }

  /// Returns the id that the file gives a token, or else the next new id.
  int64_t id_of(const std::string& content) const {
    const auto found = ids_.find(content);
    return found == ids_.end() ? next_id_ : found->second;
  }

  void note_ids() {
    const json& vocabulary = tokenizer_.at("model").at("vocab");
    int64_t place = 0;
    for (const auto& [key, value] : vocabulary.items()) {
      if (vocabulary.is_array()) {
        ids_.emplace(value.at(0).get<std::string>(), place++);
      } else {
        ids_.emplace(key, value.get<int64_t>());
      }
    }
    next_id_ = static_cast<int64_t>(ids_.size());
    for (const json& token : tokenizer_["added_tokens"]) {
      const auto id = token.at("id").get<int64_t>();
      ids_.emplace(content_of(token), id);
      next_id_ = std::max(next_id_, id + 1);
    }
  }

  void take_added_tokens() {
    const auto found = config_.find("added_tokens_decoder");
    if (found == config_.end() || found->is_null()) return;
    require(found->is_object(), "tokenizer", "added_tokens_decoder in tokenizer_config.json next to ", file_,
            " must be an object: got ", found->type_name());
    if (tokenizer_.value("added_tokens", json()).is_null()) tokenizer_["added_tokens"] = json::array();
    note_ids();
    std::map<int64_t, const json*> listed;
    for (const auto& [id, token] : found->items()) {
      require(!id.empty() && id.size() < 10 && id.find_first_not_of("0123456789") == std::string::npos, "tokenizer",
              "the keys of added_tokens_decoder next to ", file_, " must be ids: got ", printable(id));
      listed.emplace(std::stoll(id), &token);
    }
    std::set<std::string> contents = named_tokens();
    for (const auto& [id, token] : listed) {
      take(id, *token);
      contents.insert(content_of(*token));
    }
    if (class_.change == Change::None || class_.change == Change::Unknown) return;
    for (const json& token : tokenizer_["added_tokens"])  // these classes drop all other added tokens
      require(contents.count(content_of(token)) > 0, "tokenizer", "the added token ", printable(content_of(token)),
              " of ", file_,
              " must be in added_tokens_decoder of tokenizer_config.json too; add it there, or remove that key");
  }

  void take(int64_t id, const json& token) {
    const std::string content = content_of(token);
    const int64_t own = id_of(content);
    require(id == own, "tokenizer", "added_tokens_decoder in tokenizer_config.json must give ", printable(content),
            " its id in ", file_, ", ", own, ": got ", id);
    json& list = tokenizer_["added_tokens"];
    const auto known =
        std::find_if(list.begin(), list.end(), [&](const json& other) { return content_of(other) == content; });
    json& entry = known == list.end() ? list.emplace_back(json::object()) : *known;
    entry = token;
    entry["id"] = id;
    ids_.emplace(content, id);
    next_id_ = std::max(next_id_, id + 1);
  }

  /// Returns the special tokens that tokenizer_config.json and the class name.
  std::set<std::string> named_tokens() const {
    std::set<std::string> names(class_.special_tokens.begin(), class_.special_tokens.end());
    const auto add = [&](const json& token) {
      if (token.is_string()) names.insert(token.get<std::string>());
      if (token.is_object()) names.insert(value_or<std::string>(token, "content", ""));
    };
    for (const auto& [key, value] : config_.items()) {
      if (key.ends_with("_token")) add(value);
      if (key == "additional_special_tokens" || key == "extra_special_tokens")
        for (const json& token : value) add(token);
    }
    return names;
  }

  json tokenizer_;
  const json& config_;
  const std::string& file_;
  const TokenizerClass& class_;
  std::map<std::string, int64_t> ids_;
  int64_t next_id_ = 0;
};

json read_file_itself(const std::string& file) {
  return read_json_object(file, "tokenizer", {.bytes = kMaxTokenizerBytes});
}

/// Reads config.json next to the file.
json model_beside(const std::string& file) {
  const std::filesystem::path beside = std::filesystem::path(file).parent_path() / "config.json";
  if (!std::filesystem::exists(beside)) return json::object();
  return read_json_object(beside.string(), "tokenizer", {.bytes = int64_t{16} << 20});
}

}  // namespace

json as_its_class_reads(json tokenizer, const json& config, const json& model, const std::string& file) {
  return ClassReader(std::move(tokenizer), config, model, file).read();
}

json read_tokenizer_json(const std::string& file, const json& config) {
  return as_its_class_reads(read_file_itself(file), config, model_beside(file), file);
}

std::string class_that_reads(const std::string& file, const json& config) {
  const TokenizerClass& its = class_of(read_file_itself(file), config, model_beside(file));
  return its.change == Change::None ? "PreTrainedTokenizerFast" : std::string(its.name);
}

}  // namespace colossal::text
